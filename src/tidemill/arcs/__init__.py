"""Arcs: functions from lots to lots, with a state for each lot, in parts, retried only where one failed."""
