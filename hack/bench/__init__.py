"""Measurements of pyreconcile beside kopf and controller-runtime, on real control planes: ``make bench``."""
