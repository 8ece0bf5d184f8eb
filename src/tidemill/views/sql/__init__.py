"""The SQL compiler: parses Spark SQL, resolves its names and turns it into a circuit.

The package is pure. It calls Spark only through a function that the caller passes in.
"""
