"""The protocol of futures in the store: states, rows, indices and transitions."""
