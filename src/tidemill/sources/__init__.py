"""Sources: put each file and message from outside into a lot exactly once (LOT-35, CLU-19 to CLU-22)."""
