"""Circuits: operators with stable ids, their rewrites, their explanation and their translation to SQL.

This package is pure: it does not use the store, files or Spark.
"""
