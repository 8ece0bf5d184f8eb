"""Spark: sessions, and lots as frames."""
