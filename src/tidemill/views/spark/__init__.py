"""Compute the steps of groups of views with Spark."""
