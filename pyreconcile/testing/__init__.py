"""Tools for tests: a real control plane, and a pytest plugin."""
