"""The stages of a plan that certify views by comparing circuits with queries on generated data (DBSP-19)."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.events import Event
from tidemill.pipeline.plan.stages import StageStatus
from tidemill.store import Tx
from tidemill.views.certify import certificates, generated_steps
from tidemill.views.certify.certificates import (
    ViewCertificate,
    ViewCertified,
    ViewNotCertified,
    certify_function,
)
from tidemill.views.certify.equality import difference
from tidemill.views.certify.query_results import collect_rows
from tidemill.views.certify.table_contents import Row, Step, TableContents
from tidemill.views.circuit.operators import ViewOutput
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.context import PipelineContext


@dataclass(frozen=True, kw_only=True)
class Certify(ABC):
    """Tests a property of a view on generated steps, once for each version of its code.

    - digest: the digest of the code that is tested.
    - certificate: the result of an earlier test of the same code.
    """

    pipeline: str
    view: str
    where: str
    digest: str
    tables: Mapping[str, str] = field(repr=False)
    certificate: ViewCertificate | None = None

    @abstractmethod
    def _certify(self, spark: "SparkSession") -> ViewCertificate: ...

    @abstractmethod
    def _event(self, certificate: ViewCertificate) -> Event: ...

    @abstractmethod
    def describe(self) -> dict[str, str]: ...

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        certificate = certificates.read(tx, keys.lots.cluster, self.digest)
        if certificate is None:
            return StageStatus.NEW
        return StageStatus.SAME if certificate.equal else StageStatus.CHANGED

    def apply(self, context: "PipelineContext", holder: str) -> Event | None:
        """Run the test, unless its result is stored; return an event with the result."""
        cluster = context.place.cluster
        if context.store.run(lambda tx: certificates.read(tx, cluster, self.digest)) is not None:
            return None
        with context.spark() as spark:
            certificate = self._certify(spark)
        context.store.run(lambda tx: certificates.write(tx, cluster, self.digest, certificate))
        return self._event(certificate)

    def _described(self, kind: str, detail: str) -> dict[str, str]:
        return {"what": kind, "name": self.view, "detail": " ".join(detail.split()), "where": self.where}


@dataclass(frozen=True, kw_only=True)
class CertifyView(Certify):
    """Compares the circuit of a view with its query."""

    sql: str
    output: ViewOutput = field(repr=False)
    written: ViewOutput = field(repr=False)

    def _certify(self, spark: "SparkSession") -> ViewCertificate:
        return certificates.certify(
            spark, self.view, self.sql, self.output, self.tables, written=self.written
        )

    def _event(self, certificate: ViewCertificate) -> Event:
        if not certificate.equal:
            return ViewNotCertified(pipeline=self.pipeline, view=self.view, why=certificate.why)
        return ViewCertified(
            pipeline=self.pipeline, view=self.view, kind=certificate.kind, steps=certificate.compared
        )

    def describe(self) -> dict[str, str]:
        certificate = self.certificate
        if certificate is None:
            detail = "its circuit is compared with plain Spark when it is created"
        elif certificate.equal:
            detail = f"equal to plain Spark ({certificate.kind}) after {certificate.compared} generated steps"
            detail = certificate.why or detail
        else:
            detail = f"NOT equal to plain Spark, so every step recomputes it: {certificate.why}"
        return self._described("circuit", detail)


@dataclass(frozen=True, kw_only=True)
class CertifyFunction(Certify):
    """Tests a view that is a function and is declared linear or keyed."""

    declared: str
    function: "Callable[..., DataFrame]" = field(repr=False)
    reads: tuple[str, ...]
    keyed_by: tuple[str, ...]

    def _certify(self, spark: "SparkSession") -> ViewCertificate:
        return certify_function(spark, self.function, self.reads, self.tables, keyed_by=self.keyed_by)

    def _event(self, certificate: ViewCertificate) -> Event:
        if not certificate.equal:
            why = f"it is declared {self.declared} but is not: {certificate.why}"
            return ViewNotCertified(pipeline=self.pipeline, view=self.view, why=why)
        return ViewCertified(
            pipeline=self.pipeline, view=self.view, kind=self.declared, steps=certificate.compared
        )

    def describe(self) -> dict[str, str]:
        certificate = self.certificate
        if certificate is None:
            detail = f"declared {self.declared}; this is tested when it is created"
        elif certificate.equal:
            detail = f"{self.declared} as declared, after {certificate.compared} generated steps"
        else:
            detail = f"declared {self.declared} but is NOT, so every step recomputes it: {certificate.why}"
        return self._described("function", detail)


def certify_arc(
    context: "PipelineContext",
    spark: "SparkSession",
    code: str,
    results: "Callable[[DataFrame], Sequence[DataFrame]]",
    table: str,
    ddl: str,
) -> ViewCertificate:
    """Test whether the function of an arc is linear, on generated rows, once for each version of its code.

    The results of two halves of the rows must add up to the result of all rows, and an empty table must give
    an empty result.

    Args:
        context: the context of the pipeline; its store keeps the certificate.
        spark: the session.
        code: the digest of the function.
        results: the function, which returns a DataFrame for each of its tables.
        table: the table that it reads.
        ddl: the columns of that table.
    """
    digest = hashlib.sha256(repr((certificates.FORMAT, "linear", code, ddl)).encode()).hexdigest()[:32]
    cluster = context.place.cluster
    stored = context.store.run(lambda tx: certificates.read(tx, cluster, digest))
    if stored is not None:
        return stored
    contents = TableContents({table: ddl})
    for step in generated_steps.generate_steps({table: ddl})[:2]:
        contents.apply(step)
    all_rows = contents.frame(spark, table)
    rows = contents.rows(table)
    frames = [all_rows, *(_frame(spark, table, ddl, half) for half in (rows[::2], rows[1::2], []))]
    outputs = [results(frame) for frame in frames]
    queries = []
    with ExitStack() as stack:
        for number, frame in enumerate(frame for sink in zip(*outputs, strict=True) for frame in sink):
            view = f"tidemill_linear_{digest}_{number}"
            frame.createOrReplaceTempView(view)
            stack.callback(spark.catalog.dropTempView, view)
            queries.append(f"SELECT * FROM {view}")  # noqa: S608
        rows_of = collect_rows(spark, queries)
    why = ""
    for first in range(0, len(rows_of), 4):
        of_all, of_half, of_other_half, of_none = rows_of[first : first + 4]
        differs = difference(of_all, [*of_half, *of_other_half])
        if differs is not None:
            why = f"the results of two halves of the rows differ from the result of all rows: {differs}"
        elif of_none:
            why = f"an empty table gives {len(of_none)} rows"
    certificate = ViewCertificate(equal=not why, why=why[:1000], compared=len(rows))
    context.store.run(lambda tx: certificates.write(tx, cluster, digest, certificate))
    return certificate


def _frame(spark: "SparkSession", table: str, ddl: str, rows: "Sequence[Row]") -> "DataFrame":
    contents = TableContents({table: ddl})
    contents.apply(Step(inserts={table: rows}))
    return contents.frame(spark, table)
