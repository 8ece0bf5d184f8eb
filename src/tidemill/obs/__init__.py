"""Observability: turns events into log lines and progress bars."""
