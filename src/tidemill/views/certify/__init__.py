"""Certification: what maintains a view is compared with plain Spark, by classes of equality (DBSP-20)."""
