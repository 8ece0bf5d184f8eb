"""Certification: compare the results of a view with the results of plain Spark (DBSP-20)."""
