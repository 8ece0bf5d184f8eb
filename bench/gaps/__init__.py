"""Measure a gap report and the discovery of new files."""
