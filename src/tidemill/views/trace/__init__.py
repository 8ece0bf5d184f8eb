"""Traces: the stored state of operators, in immutable run files that a version file lists. No Spark here."""
