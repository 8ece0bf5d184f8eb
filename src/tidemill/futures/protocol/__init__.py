"""The rules of a future in the store: states, rows, indices and transitions."""
