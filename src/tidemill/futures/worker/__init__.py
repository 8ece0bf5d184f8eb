"""The worker: claims futures, runs them in child processes and writes their results."""
