"""Futures in simulation: workers that claim, complete, crash, pause and come back, on the cluster's stage."""
