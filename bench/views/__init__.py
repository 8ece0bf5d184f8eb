"""Views: a step of an incremental view beside recomputing it, and beside others who follow changes."""
