"""Simulate the cluster: members, leaders, partitions, locks and a queue, and the rules they must keep."""
