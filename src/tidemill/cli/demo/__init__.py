"""`tidemill demo`: run Tidemill in real processes, kill one with kill -9, and check the result."""
