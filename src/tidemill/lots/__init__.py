"""Lots: the batches of data in a dataset, and the names of lots and their files."""
