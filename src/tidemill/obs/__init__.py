"""Observability: turn events into log lines and progress bars."""
