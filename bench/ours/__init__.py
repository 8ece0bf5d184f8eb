"""Our side of each comparison. Each runs in a separate process, like a peer."""
