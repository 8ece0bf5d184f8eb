"""Spark: sessions, schemas, and lots as frames. DataFrame API only, so that Spark Connect works."""
