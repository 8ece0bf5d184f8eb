"""The peers of the comparisons: one file each, run in a separate process, with its best idiom."""
