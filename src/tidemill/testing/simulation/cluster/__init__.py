"""The cluster room on stage: members, leaders, partitions, locks and a queue, and the rules they live by."""
