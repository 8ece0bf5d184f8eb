"""Certification: compare the result of a view with plain Spark, by classes of equality (DBSP-20)."""
