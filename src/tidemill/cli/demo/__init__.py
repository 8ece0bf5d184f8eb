"""`tidemill demo`: show what Tidemill does, with real processes and a real kill -9, and check the result."""
