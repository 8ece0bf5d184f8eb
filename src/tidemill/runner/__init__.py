"""Run pipelines: the loop that starts runs, the in-process worker, and the supervisor of `tidemill run`."""
