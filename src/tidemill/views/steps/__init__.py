"""The protocol of steps: assign input to steps, and commit each step exactly once. No Spark here."""
