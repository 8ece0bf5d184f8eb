"""`python -m bench.store`: the cost of the port, the gain of group commit, the fail-over of a leader."""
