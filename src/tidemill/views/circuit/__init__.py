"""Circuits: operators with stable ids, their rewrites, their explanation and their form as SQL.

Everything in this package is pure: it reads no store, no files and no Spark.
"""
