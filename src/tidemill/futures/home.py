"""The address of a cluster: its store, its object storage, its name and its key.

A *home* is a folder that contains the store (`store.db`), the objects (`objects/`) and the key
(`cluster.key`, with mode 0600). The key is created with the home. Any other store is identified by its URL,
and the user must provide the key (FUT-59).

A `ClusterAddress` can be pickled, so that a handle or a client can connect to its cluster from another
process. The pickle contains neither the key nor the password of a URL. With a home, the other process reads
the key from the home. Without a home, it must already be connected, or get the key and the password from its
own environment.
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
from tidemill.paths import expanded
from tidemill.store.secret_references import dereferenced
from tidemill.store.secrets import HIDDEN
from tidemill.store.secrets import redact as redact_store

STORE, OBJECTS = "store.db", "objects"
CLUSTER = "default"


class ClusterAddress:
    """The store, objects, name and key of one cluster. `home` is empty for a cluster without a home."""

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
        if not cluster or len(cluster.encode(errors="replace")) > 200:
            raise UsageError(
                f"invalid cluster name: {cluster!r:.100}", hint="use 1 to 200 bytes of text, e.g. 'default'"
            )
        self.store = store
        self.objects = objects
        self.cluster = cluster
        self.home = home
        self._key = key

    @classmethod
    def of_home(cls, home: str | os.PathLike[str], cluster: str = CLUSTER) -> "ClusterAddress":
        """Return the address of a home. The folder is created when it is first used."""
        folder = expanded(home).resolve()
        if folder.exists() and not folder.is_dir():
            raise UsageError(
                f"the home {folder} is not a folder", hint="use a folder; it is created if it does not exist"
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
        """Return the address that a user specifies: a home, or a store with its objects.

        Args:
            home: a folder.
            store: the store's URL, instead of a home; `env:NAME` or `file:PATH` names its place.
            objects: the URL for large code, large arguments and durable results; without it, Tidemill refuses
                them.
            cluster: the name that prefixes all keys (FUT-11).
            key_file: the file with the cluster key; not needed for a home.
            environ: the environment that contains the key if there is no `key_file`.
        """
        if (home is None) == (store is None):
            raise UsageError(
                "a cluster needs either home= or store=",
                hint='use connect(home="my-home"), or connect(store="postgresql://…", objects="s3://…")',
            )
        if home is not None:
            if objects is not None:
                raise UsageError(
                    "home= and objects= cannot be used together: a home contains its own objects",
                    hint="omit objects=, or use store= instead of home=",
                )
            return cls.of_home(home, cluster)
        assert store is not None
        for name, url in (("store", store), ("objects", objects)):
            if not isinstance(url, str | None):
                raise UsageError(f"{name}= must be a URL, not {type(url).__name__}", hint="pass a string")
        store = dereferenced(store, environ)
        objects = None if objects is None else dereferenced(objects, environ)
        key = given_key(environ, file=expanded(key_file) if key_file is not None else None)
        return cls(store=store, objects=objects or "", cluster=cluster, key=key)

    @property
    def key(self) -> ClusterKey:
        """The cluster key: from the home, from the user's key file, or from the environment."""
        if self._key is None:
            self._key = self._read_key()
        return self._key

    def _read_key(self) -> ClusterKey:
        if not self.home:
            return given_key(os.environ)
        Path(self.home).mkdir(parents=True, exist_ok=True)
        return home_key(Path(self.home))

    @property
    def identity(self) -> tuple[str, str]:
        """Identifies the cluster in this process, without secrets."""
        return redact_store(self.store), self.cluster

    @property
    def can_be_opened(self) -> bool:
        """False for an address that lost its password when it was pickled."""
        return HIDDEN not in self.store and BLOT not in self.objects

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterAddress) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (redact_store(self.store), redact_objects(self.objects), self.cluster, self.home)

    def __repr__(self) -> str:
        return f"<ClusterAddress {self.home or redact_store(self.store)} cluster {self.cluster!r}>"


def _arrived(store: str, objects: str, cluster: str, home: str) -> ClusterAddress:
    """Rebuild a pickled address. Stored pickles refer to this function by name."""
    return ClusterAddress(store=store, objects=objects, cluster=cluster, home=home)
