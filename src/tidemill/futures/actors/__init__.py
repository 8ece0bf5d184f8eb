"""Actors: objects in a worker process that keep state between calls; see also `protocol.actors`."""
