"""The bench of durable futures: `python -m bench.futures`."""
