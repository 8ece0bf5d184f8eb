"""Views on Spark: how the steps of a group are computed."""
