"""Durable futures: functions that run to one result wherever there is a worker, whatever dies meanwhile."""
