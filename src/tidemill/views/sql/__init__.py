"""Spark SQL parsed, resolved and normalised into a circuit;
pure, Spark is asked through a function passed in.
"""
