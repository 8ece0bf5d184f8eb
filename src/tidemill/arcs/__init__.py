"""Arcs: functions that compute the lots of a table from the lots of other tables.

Each lot has a state and is computed in parts. A retry computes only the parts that failed.
"""
