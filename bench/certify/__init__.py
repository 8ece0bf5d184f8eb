"""Measure how long new views are compared with plain Spark."""
