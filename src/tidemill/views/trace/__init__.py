"""Traces: the stored state of operators, in immutable run files that a version file lists.

This package does not use Spark.
"""
