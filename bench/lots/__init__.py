"""Lots: the cost of bookkeeping, and a whole arc compared with a plain Spark loop."""
