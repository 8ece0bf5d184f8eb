"""Actors: objects that live in one worker process. Their transitions are in `protocol.actors`."""
