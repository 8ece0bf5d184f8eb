"""SQLite backend of the store: the embedded default, one file, shared by the processes of one machine."""

from tidemill.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
