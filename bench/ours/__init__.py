"""Our side of each comparison, run in a process of its own as a peer is."""
