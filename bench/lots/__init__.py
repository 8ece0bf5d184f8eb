"""Lots: what keeping books costs, and a whole arc beside a plain Spark loop."""
