"""pyreconcile: a controller-runtime-style reconciler framework in pure Python."""
