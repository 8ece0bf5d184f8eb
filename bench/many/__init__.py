"""Measure pipelines with many views."""
