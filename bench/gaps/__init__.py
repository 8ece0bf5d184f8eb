"""What it costs to know what is missing, and what is new."""
