"""Chains: a circuit as layers of operators with state, joined by row-by-row legs. No Spark here."""
