"""Chains: a circuit as layers of stateful operators, with row expressions between them. No Spark here."""
