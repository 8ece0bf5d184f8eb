"""Measure how fast the page answers over many lots and futures."""
