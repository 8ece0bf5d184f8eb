"""PostgreSQL backend of the store: for pipelines that run on several machines."""

from tidemill.store.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
