"""Simulate futures: workers that claim, complete, crash, pause and return."""
