"""Where a cluster is: its store, its objects, its name and its key.

A *home* is a folder that has all of it: `store.db`, `objects/` and `cluster.key` (mode 0600, made with the
home). Any other store is named by its URL, and its key must be given (FUT-59).

A `ClusterAddress` can be pickled, so that a handle or a client finds its cluster again in another process.
Neither the key nor the password of a URL is part of the pickle. A home contains both. Elsewhere the other
process must be connected already, or get them from its own environment.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidemill.errors import UsageError
from tidemill.futures.values.signatures import ClusterKey, given_key, home_key
from tidemill.objects.url import BLOT
from tidemill.objects.url import redact as redact_objects
from tidemill.store.secrets import HIDDEN
from tidemill.store.secrets import redact as redact_store

STORE, OBJECTS = "store.db", "objects"
CLUSTER = "default"


class ClusterAddress:
    """One cluster's store, objects, name and key. `home` is empty unless it is a home."""

    __slots__ = ("_key", "cluster", "home", "objects", "store")

    def __init__(
        self,
        *,
        store: str,
        objects: str,
        cluster: str = CLUSTER,
        home: str = "",
        key: ClusterKey | None = None,
    ) -> None:
        if not cluster or len(cluster.encode()) > 200:
            raise UsageError(
                f"not a name of a cluster: {cluster!r:.100}", hint="a text of 1 to 200 bytes, e.g. 'default'"
            )
        self.store = store
        self.objects = objects
        self.cluster = cluster
        self.home = home
        self._key = key

    @classmethod
    def of_home(cls, home: str | os.PathLike[str], cluster: str = CLUSTER) -> "ClusterAddress":
        """A home; made when it is not there."""
        folder = Path(home).expanduser().resolve()
        if folder.exists() and not folder.is_dir():
            raise UsageError(
                f"the home {folder} is not a folder", hint="name a folder; it is made if missing"
            )
        return cls(
            store=f"sqlite://{quote(str(folder / STORE))}",
            objects=f"file://{quote(str(folder / OBJECTS))}",
            cluster=cluster,
            home=str(folder),
        )

    @classmethod
    def of(
        cls,
        *,
        home: str | os.PathLike[str] | None = None,
        store: str | None = None,
        objects: str | None = None,
        cluster: str = CLUSTER,
        key_file: str | os.PathLike[str] | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> "ClusterAddress":
        """A place from what a user says: a home, or a store with its objects.

        Args:
            home: a folder.
            store: the store's URL, instead of a home.
            objects: where large code, arguments and durable results go; without it they are refused.
            cluster: the name all keys lie under (FUT-11).
            key_file: the file of the cluster key; a home has its own.
            environ: where the key is looked for otherwise.
        """
        if (home is None) == (store is None):
            raise UsageError(
                "a cluster is at a home or at a store",
                hint='connect(home="my-home"), or connect(store="postgresql://…", objects="s3://…")',
            )
        if home is not None:
            if objects is not None:
                raise UsageError("a home has its own objects", hint="leave objects= out, or give store= too")
            return cls.of_home(home, cluster)
        assert store is not None
        for name, url in (("store", store), ("objects", objects)):
            if not isinstance(url, str | None):
                raise UsageError(f"{name}= is a URL, not {type(url).__name__}", hint="give it as a text")
        key = given_key(environ, file=Path(key_file) if key_file is not None else None)
        return cls(store=store, objects=objects or "", cluster=cluster, key=key)

    @property
    def key(self) -> ClusterKey:
        """The cluster key: a home's is made with it; elsewhere the environment's unless it was given."""
        if self._key is None:
            self._key = self._found()
        return self._key

    def _found(self) -> ClusterKey:
        if not self.home:
            return given_key(os.environ)
        Path(self.home).mkdir(parents=True, exist_ok=True)
        return home_key(Path(self.home))

    @property
    def identity(self) -> tuple[str, str]:
        """Tells one cluster from another in this process, without secrets."""
        return redact_store(self.store), self.cluster

    @property
    def can_be_opened(self) -> bool:
        """False for a place that was pickled and had a password, which is not in the pickle."""
        return HIDDEN not in self.store and BLOT not in self.objects

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterAddress) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (redact_store(self.store), redact_objects(self.objects), self.cluster, self.home)

    def __repr__(self) -> str:
        return f"<Place {self.home or redact_store(self.store)} cluster {self.cluster!r}>"


def _arrived(store: str, objects: str, cluster: str, home: str) -> ClusterAddress:
    return ClusterAddress(store=store, objects=objects, cluster=cluster, home=home)
