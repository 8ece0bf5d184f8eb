"""The protocol of steps: assign input to steps, and commit each step exactly once.

This package does not use Spark.
"""
