"""The bench of the field cases: a judge, a fault proxy for each run, and programs under test as processes.

The judge is no part of the framework and goes past the proxy. What it and the proxy wrote down decides a case.
"""
