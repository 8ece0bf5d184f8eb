"""Spark: sessions, schemas, reading and writing lots. Only the DataFrame API, so that Spark Connect works."""
