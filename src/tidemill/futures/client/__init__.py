"""The client: submits calls, waits for futures and loads their results."""
