"""Traces: what operators remember, as sorted immutable run files listed by a version file. No Spark here."""
