"""Chains: a circuit as layers of operators with state, joined by row-by-row segments. No Spark here."""
