"""Certification as a stage of a plan: a view's circuit against its query, when the view is new (DBSP-19)."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.events import Event
from tidemill.pipeline.plan.stages import Status
from tidemill.store import Tx
from tidemill.views.certify import certificates, generate
from tidemill.views.certify.certificates import Certificate, ViewCertified, ViewNotCertified
from tidemill.views.certify.compare import difference
from tidemill.views.certify.contents import Contents, Row, Step
from tidemill.views.certify.functions import certify_function
from tidemill.views.certify.results import collected
from tidemill.views.circuit.operators import Output
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.context import Site


@dataclass(frozen=True, kw_only=True)
class Certify(ABC):
    """Something that a view is said to be, tried out on generated steps, once for its code.

    - digest: of what is tried out.
    - known: what an earlier certification of the same code found.
    """

    pipeline: str
    view: str
    where: str
    digest: str
    tables: Mapping[str, str] = field(repr=False)
    known: Certificate | None = None

    @abstractmethod
    def _certified(self, spark: "SparkSession") -> Certificate: ...

    @abstractmethod
    def _event(self, found: Certificate) -> Event: ...

    @abstractmethod
    def describe(self) -> dict[str, str]: ...

    def status(self, tx: Tx, keys: StepKeys) -> Status:
        found = certificates.read(tx, keys.lots.cluster, self.digest)
        if found is None:
            return Status.NEW
        return Status.SAME if found.equal else Status.CHANGED

    def apply(self, site: "Site", holder: str) -> Event | None:
        """Try it out, unless somebody has; the event says what was found."""
        cluster = site.place.cluster
        if site.store.run(lambda tx: certificates.read(tx, cluster, self.digest)) is not None:
            return None
        with site.spark() as spark:
            found = self._certified(spark)
        site.store.run(lambda tx: certificates.write(tx, cluster, self.digest, found))
        return self._event(found)

    def _described(self, what: str, detail: str) -> dict[str, str]:
        return {"what": what, "name": self.view, "detail": " ".join(detail.split()), "where": self.where}


@dataclass(frozen=True, kw_only=True)
class CertifyView(Certify):
    """A view whose circuit is compared with its query."""

    sql: str
    output: Output = field(repr=False)
    written: Output = field(repr=False)

    def _certified(self, spark: "SparkSession") -> Certificate:
        return certificates.certify(
            spark, self.view, self.sql, self.output, self.tables, written=self.written
        )

    def _event(self, found: Certificate) -> Event:
        if not found.equal:
            return ViewNotCertified(pipeline=self.pipeline, view=self.view, why=found.why)
        return ViewCertified(pipeline=self.pipeline, view=self.view, kind=found.kind, steps=found.compared)

    def describe(self) -> dict[str, str]:
        found = self.known
        if found is None:
            detail = "its circuit is compared with plain Spark when it is created"
        elif found.equal:
            detail = f"equal to plain Spark ({found.kind}) after {found.compared} generated steps"
            detail = found.why or detail
        else:
            detail = f"NOT equal to plain Spark, so it is recomputed in every step: {found.why}"
        return self._described("circuit", detail)


@dataclass(frozen=True, kw_only=True)
class CertifyFunction(Certify):
    """A view that is a function, declared linear or keyed."""

    declared: str
    function: "Callable[..., DataFrame]" = field(repr=False)
    reads: tuple[str, ...]
    keyed_by: tuple[str, ...]

    def _certified(self, spark: "SparkSession") -> Certificate:
        return certify_function(spark, self.function, self.reads, self.tables, keyed_by=self.keyed_by)

    def _event(self, found: Certificate) -> Event:
        if not found.equal:
            why = f"it is declared {self.declared}, and is not: {found.why}"
            return ViewNotCertified(pipeline=self.pipeline, view=self.view, why=why)
        return ViewCertified(pipeline=self.pipeline, view=self.view, kind=self.declared, steps=found.compared)

    def describe(self) -> dict[str, str]:
        found = self.known
        if found is None:
            detail = f"declared {self.declared}, which is tried out when it is created"
        elif found.equal:
            detail = f"{self.declared}, as declared, after {found.compared} generated steps"
        else:
            detail = f"declared {self.declared}, and is NOT: recomputed in every step: {found.why}"
        return self._described("function", detail)


def certify_arc(
    site: "Site",
    spark: "SparkSession",
    code: str,
    made: "Callable[[DataFrame], Sequence[DataFrame]]",
    table: str,
    ddl: str,
) -> Certificate:
    """Is a function linear? What it makes of rows in two halves must be what it makes of all, and of nothing
    nothing; on generated rows, once for its code.

    Args:
        site: where certificates are kept.
        spark: the session.
        code: the digest of its function.
        made: the function, with a frame for each of its tables.
        table: what it reads.
        ddl: the columns of that.
    """
    digest = hashlib.sha256(repr((certificates.FORMAT, "linear", code, ddl)).encode()).hexdigest()[:32]
    cluster = site.place.cluster
    known = site.store.run(lambda tx: certificates.read(tx, cluster, digest))
    if known is not None:
        return known
    contents = Contents({table: ddl})
    for step in generate.steps({table: ddl})[:2]:
        contents.apply(step)
    whole = contents.frame(spark, table)
    rows = contents.rows(table)
    frames = [whole, *(_frame(spark, table, ddl, some) for some in (rows[::2], rows[1::2], []))]
    results = [made(frame) for frame in frames]
    texts = []
    with ExitStack() as stack:
        for number, frame in enumerate(one for result in zip(*results, strict=True) for one in result):
            view = f"tidemill_linear_{digest}_{number}"
            frame.createOrReplaceTempView(view)
            stack.callback(spark.catalog.dropTempView, view)
            texts.append(f"SELECT * FROM {view}")  # noqa: S608
        found = collected(spark, texts)
    why = ""
    for first in range(0, len(found), 4):
        all_rows, one, other, nothing = found[first : first + 4]
        differs = difference(all_rows, [*one, *other])
        if differs is not None:
            why = f"of all rows it makes something else than of two halves of them: {differs}"
        elif nothing:
            why = f"it makes {len(nothing)} rows of an empty table"
    verdict = Certificate(equal=not why, why=why[:1000], compared=len(rows))
    site.store.run(lambda tx: certificates.write(tx, cluster, digest, verdict))
    return verdict


def _frame(spark: "SparkSession", table: str, ddl: str, rows: "Sequence[Row]") -> "DataFrame":
    contents = Contents({table: ddl})
    contents.apply(Step(inserts={table: rows}))
    return contents.frame(spark, table)
