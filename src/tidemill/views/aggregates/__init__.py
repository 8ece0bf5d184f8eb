"""Aggregates: the registry of Spark's aggregate functions, their exact sums and their results."""
