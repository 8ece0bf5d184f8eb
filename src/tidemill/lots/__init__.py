"""Lots: the data that arrived in one interval of a dataset, and the names under which it is found."""
