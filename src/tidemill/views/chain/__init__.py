"""Chains: a circuit as layers of stateful operators, with row expressions between them.

This package does not use Spark.
"""
