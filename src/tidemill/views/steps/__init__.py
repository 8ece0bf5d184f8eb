"""The protocol of steps: which input belongs to a step, and that a step is committed once. No Spark here."""
