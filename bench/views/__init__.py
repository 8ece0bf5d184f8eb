"""Views: a step of an incremental view, compared with a recompute and with other incremental systems."""
