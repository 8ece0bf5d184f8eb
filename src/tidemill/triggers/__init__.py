"""Triggers: decide which arcs and view groups run after a publication or at a scheduled time."""
