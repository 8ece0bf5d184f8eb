"""Certificates: records that the circuit of a view was compared with its query (DBSP-18, DBSP-19).

(C, "certificate", digest)     the result of the comparison, or the attempt to compare

When a view is new, plain Spark runs both its query and its circuit on generated steps. The steps contain
duplicates, NULL, NaN, deletions and empty tables, and the time advances between steps. If the results differ,
the view does not use the circuit: it stays on the rung *full*, which runs the original query, and an event
reports this. The result is stored under a digest of everything that it depends on, so the next start does not
repeat the comparison.

A node records its attempt before the comparison starts (`begin`), because a query can end Spark or the whole
process. A dead node leaves its attempt in the store. One death proves nothing: an operator may have killed
the process. So the next node repeats the attempt, but compares such a *suspect* alone. After `MOST_DEATHS`
deaths the comparison has failed. The view is then recomputed in each step, as if the results had differed,
and no later run repeats the attempt. An interrupted node withdraws its attempt.
"""

import hashlib
import importlib.metadata
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Final

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.events import Event
from tidemill.store import Space, Tx
from tidemill.views.chain.layer_task import CODE
from tidemill.views.circuit.operators import ViewOutput

FORMAT = 8
"""The version of the generated steps and of the comparison; a new version certifies every view again."""

MOST_DEATHS: Final = 3
"""After this many deaths of nodes that compared a view, the comparison has failed."""


class ViewCertificate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a certification, or an attempt that has no result yet.

    - equal: whether the circuit and the query gave the same result after every step.
    - why: what differed, or why there was nothing to compare.
    - compared: the number of steps compared.
    - loose: the number of these steps in which Spark itself has several correct results.
    - raised: the number of these steps in which both sides raised an error.
    - attempted_by, epoch: the node that has begun the comparison and has not finished it.
    - deaths: how many nodes died during the comparison.
    """

    equal: bool
    kind: str = "exact"
    why: str = ""
    compared: int = 0
    loose: int = 0
    raised: int = 0
    attempted_by: str = ""
    epoch: int = 0
    deaths: int = 0

    @property
    def failed(self) -> bool:
        """Whether the comparison failed, so that there will be no result."""
        return self.kind == FAILED

    @property
    def open(self) -> bool:
        """Whether the comparison has begun and has no result yet."""
        return self.kind == OPEN

    @property
    def refused(self) -> bool:
        """Whether each step must recompute the view, because of a difference or a failure."""
        return not self.equal and not self.open


OPEN: Final = "open"
FAILED: Final = "failed"
UNFINISHED: Final = ViewCertificate(
    equal=False,
    kind=FAILED,
    why=f"the comparison ended Spark or its process {MOST_DEATHS} times",
    deaths=MOST_DEATHS,
)


class Attempt(Enum):
    """What `begin` returns if there is no result yet."""

    BEGUN = "begun"
    SUSPECT = "suspect"
    RUNNING = "running"


class ViewCertified(Event, frozen=True, kw_only=True):
    """The circuit of a view gave the same results as plain Spark."""

    pipeline: str
    view: str
    kind: str
    steps: int


class ViewNotCertified(Event, frozen=True, kw_only=True):
    """A view's circuit differs from plain Spark, or could not be compared: each step recomputes the view."""

    pipeline: str
    view: str
    why: str


class CertificateLate(Event, frozen=True, kw_only=True):
    """A view starts without a certificate: steps recompute it until the comparison has ended."""

    pipeline: str
    view: str


_decoder = msgspec.msgpack.Decoder(ViewCertificate)


def digest_of(code: str, output: ViewOutput, spark: str) -> str:
    """Return the digest under which the certificate of a view is stored.

    Args:
        code: the digest of the view's query, columns and pinned settings.
        output: its circuit, with the types of the tables that it reads.
        spark: the version of Spark.
    """
    return _digest(code, output.fingerprint, spark)


def digest_of_function(code: str, declared: str, tables: Mapping[str, str], spark: str) -> str:
    """Return the digest under which the certificate of a function is stored.

    Args:
        code: the digest of the function, its columns and the pinned settings.
        declared: what is declared about the function.
        tables: the columns of the tables that it reads.
        spark: the version of Spark.
    """
    return _digest(code, declared, sorted(tables.items()), spark)


def _digest(*parts: object) -> str:
    content = repr((FORMAT, CODE, _release(), *parts))
    return hashlib.sha256(content.encode()).hexdigest()[:32]


@cache
def _release() -> str:
    """Return the release of Tidemill. Another release may compute circuits in another way."""
    try:
        return importlib.metadata.version("tidemill")
    except importlib.metadata.PackageNotFoundError:  # not installed, only on the module search path
        return ""


def read(tx: Tx, cluster: str, digest: str) -> ViewCertificate | None:
    """Read a certificate; None if this code was never certified."""
    raw = tx.get(_space(cluster)[digest])
    return None if raw is None else _decoder.decode(raw)


def write(tx: Tx, cluster: str, digest: str, certificate: ViewCertificate) -> None:
    """Store a certificate."""
    tx.set(_space(cluster)[digest], msgspec.msgpack.encode(certificate), quiet=True)


def begin(tx: Tx, cluster: str, digest: str, node: Node) -> ViewCertificate | Attempt:
    """Record that a node begins a comparison, before the node does anything that could end the process.

    Return the certificate if there is one. If another node is running the comparison, return RUNNING. If a
    node died during the comparison, return SUSPECT: this node must compare the view alone. If that was the
    last of `MOST_DEATHS` deaths, store that the comparison failed, and return that certificate.
    """
    stored = read(tx, cluster, digest)
    if stored is not None and not stored.open:
        return stored
    deaths = 0 if stored is None else stored.deaths
    if stored is not None and stored.attempted_by:
        if nodes.is_alive(tx, ClusterKeys(cluster), stored.attempted_by, stored.epoch):
            return Attempt.RUNNING
        deaths += 1
    if deaths >= MOST_DEATHS:
        write(tx, cluster, digest, UNFINISHED)
        return UNFINISHED
    write(tx, cluster, digest, _attempt(deaths, node))
    return Attempt.SUSPECT if deaths else Attempt.BEGUN


def finish(tx: Tx, cluster: str, digest: str, node: Node, certificate: ViewCertificate) -> bool:
    """Store the result of an attempt; return False if there is another result.

    A node that lost its lease during the attempt counts as dead, although it runs on. If it has a result, the
    result is as good as any other, and shows that the comparison did not end the node. A failure of such a
    node is not stored: another node repeats the attempt.
    """
    stored = read(tx, cluster, digest)
    has_result = stored is not None and not stored.open and stored != UNFINISHED
    if has_result or (certificate.failed and not _is_ours(stored, node)):
        return False
    write(tx, cluster, digest, certificate)
    return True


def withdraw(tx: Tx, cluster: str, digest: str, node: Node, *, died: bool = False) -> None:
    """Give up this node's attempt without a result; a later run starts the comparison again.

    - died: whether Spark ended during the attempt, which counts as a death.
    """
    stored = read(tx, cluster, digest)
    if stored is None or not _is_ours(stored, node):
        return
    deaths = stored.deaths + died
    if deaths:
        write(tx, cluster, digest, _attempt(deaths))
    else:
        tx.clear(_space(cluster)[digest])


def forget_failure(tx: Tx, cluster: str, digest: str) -> bool:
    """Remove a failed comparison, so that the next run repeats it; return False if there is none."""
    stored = read(tx, cluster, digest)
    if stored is None or not stored.failed:
        return False
    tx.clear(_space(cluster)[digest])
    return True


def _attempt(deaths: int, node: Node | None = None) -> ViewCertificate:
    return ViewCertificate(
        equal=False,
        kind=OPEN,
        deaths=deaths,
        attempted_by="" if node is None else node.id,
        epoch=0 if node is None else node.epoch,
    )


def _is_ours(stored: ViewCertificate | None, node: Node) -> bool:
    return stored is not None and (stored.attempted_by, stored.epoch) == (node.id, node.epoch)


def _space(cluster: str) -> Space:
    return Space(cluster, "certificate")
