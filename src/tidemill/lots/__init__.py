"""Lots: the data that arrived in one interval of a dataset, and the names of lots and their files."""
