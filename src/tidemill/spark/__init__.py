"""Spark: sessions, schemas, reading and writing lots.

The package uses only the DataFrame API, so that it works with Spark Connect.
"""
