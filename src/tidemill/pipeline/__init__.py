"""What users import: a pipeline, its datasets, sources, arcs and views."""
