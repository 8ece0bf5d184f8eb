"""Arcs: functions that make the lots of tables from the lots of other tables.

Each lot has a state and is made in parts. A retry makes only the parts that failed.
"""
