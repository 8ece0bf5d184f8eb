"""The public classes of a pipeline: the pipeline itself, its datasets, sources, arcs and views."""
