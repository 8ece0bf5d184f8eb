"""Runners: a supervisor with one child that holds a Spark session, and hands that run futures."""
