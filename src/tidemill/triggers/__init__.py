"""Triggers: who is to run because of what was published, and when."""
