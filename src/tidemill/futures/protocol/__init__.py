"""How futures are stored: their states, rows and indices, and the transitions between states."""
