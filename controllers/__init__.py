"""Controllers that come with pyreconcile, one folder each."""
