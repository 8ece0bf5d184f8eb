"""The stages of a plan that certify views by comparing circuits with queries on generated data (DBSP-19)."""

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tidemill.clock import Clock
from tidemill.errors import SparkUnavailable
from tidemill.events import Event
from tidemill.pipeline.plan.catalog import short
from tidemill.pipeline.plan.stages import StageStatus
from tidemill.spark.sessions import changed_settings
from tidemill.store import Tx
from tidemill.views.certify import certificates, generated_steps
from tidemill.views.certify.bounds import MOST_SECONDS, BoundExceeded, Bounds, ends_spark
from tidemill.views.certify.certificates import (
    UNFINISHED,
    Attempt,
    ViewCertificate,
    ViewCertified,
    ViewNotCertified,
    certify_function,
)
from tidemill.views.certify.equality import Row as Value
from tidemill.views.certify.equality import difference
from tidemill.views.certify.query_results import collect_rows
from tidemill.views.certify.table_contents import Row, Step, TableContents
from tidemill.views.circuit.operators import ViewOutput
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.context import PipelineContext


FOR_SMALL_QUERIES: Final[Mapping[str, str]] = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.shuffle.partitions": "1",
}
"""Spark settings for a test, which runs many queries over a few rows. With its usual settings, Spark would
spend most of the time generating Java code. These settings do not change results, and the query and the
circuit both run with them."""

_testing = threading.Lock()
"""Held while a test uses these settings: a second test must not save them as the session's own settings."""

POLL_S = 0.2
MOST_WAIT_S = 2 * MOST_SECONDS
"""How long a run waits for a test that another node runs. After that, it recomputes the view."""


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
    def _certify(self, spark: "SparkSession", bounds: Bounds) -> ViewCertificate: ...

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
        store, cluster, node = context.store, context.place.cluster, context.node.id
        begun = self._begin(context, node)
        if begun is Attempt.DIED:
            return self._event(UNFINISHED)
        if begun is not Attempt.BEGUN:
            return None
        try:
            with context.spark() as spark:
                certificate, ended_by = self._attempt(spark, context.clock)
                store.run(lambda tx: certificates.finish(tx, cluster, self.digest, node, certificate))
        except BaseException:  # such as an interrupt, which says nothing about the view
            store.run(lambda tx: certificates.withdraw(tx, cluster, self.digest, node))
            raise
        if ended_by is not None:
            raise SparkUnavailable(
                f"Spark ended during the test of view {self.view}: {short(ended_by)}",
                hint="run the pipeline again: it skips the test, and recomputes the view in each step",
            ) from ended_by
        return self._event(certificate)

    def _begin(self, context: "PipelineContext", node: str) -> ViewCertificate | Attempt:
        """Begin the test; first wait while another node runs it."""
        cluster = context.place.cluster
        ends_at = context.clock.monotonic() + MOST_WAIT_S
        while True:
            begun = context.store.run(lambda tx: certificates.begin(tx, cluster, self.digest, node))
            if begun is not Attempt.RUNNING or context.clock.monotonic() >= ends_at:
                return begun
            context.clock.sleep(POLL_S)

    def _attempt(self, spark: "SparkSession", clock: Clock) -> tuple[ViewCertificate, Exception | None]:
        """Run the test. If it fails, the certificate says why. If an error ended Spark, also return it."""
        bounds, ended_by = Bounds(), None
        try:
            with _testing, bounds.watch(spark, clock), changed_settings(spark, FOR_SMALL_QUERIES):
                return self._certify(spark, bounds), None
        except BoundExceeded as error:
            why = str(error)
        except Exception as error:  # noqa: BLE001 - explain shows it; a test must not stop a pipeline
            ended_by = _first_error(error) if ends_spark(error) else None
            why = (
                f"the test ended Spark: {short(ended_by)}" if ended_by else f"the test failed: {short(error)}"
            )
        return ViewCertificate(equal=False, kind=certificates.FAILED, why=why), ended_by

    def _described(self, kind: str, detail: str) -> dict[str, str]:
        return {"what": kind, "name": self.view, "detail": " ".join(detail.split()), "where": self.where}


@dataclass(frozen=True, kw_only=True)
class CertifyView(Certify):
    """Compares the circuit of a view with its query."""

    sql: str
    output: ViewOutput = field(repr=False)
    written: ViewOutput = field(repr=False)

    def _certify(self, spark: "SparkSession", bounds: Bounds) -> ViewCertificate:
        return certificates.certify(
            spark, self.view, self.sql, self.output, self.tables, written=self.written, bounds=bounds
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
            detail = "its circuit is compared with plain Spark when the view is created"
        elif certificate.equal:
            detail = f"equal to plain Spark ({certificate.kind}) after {certificate.compared} generated steps"
            detail = certificate.why or detail
        elif certificate.failed:
            detail = (
                f"could not be compared with plain Spark, so every step recomputes it: {certificate.reason}"
            )
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

    def _certify(self, spark: "SparkSession", bounds: Bounds) -> ViewCertificate:
        return certify_function(
            spark, self.function, self.reads, self.tables, keyed_by=self.keyed_by, bounds=bounds
        )

    def _event(self, certificate: ViewCertificate) -> Event:
        if not certificate.equal:
            wrong = "this could not be tested" if certificate.failed else "is not"
            why = f"it is declared {self.declared} but {wrong}: {certificate.why}"
            return ViewNotCertified(pipeline=self.pipeline, view=self.view, why=why)
        return ViewCertified(
            pipeline=self.pipeline, view=self.view, kind=self.declared, steps=certificate.compared
        )

    def describe(self) -> dict[str, str]:
        certificate = self.certificate
        if certificate is None:
            detail = f"declared {self.declared}; this is tested when the view is created"
        elif certificate.equal:
            detail = f"{self.declared} as declared, after {certificate.compared} generated steps"
        elif certificate.failed:
            detail = f"declared {self.declared}; this could not be tested: {certificate.reason}"
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
    """Test on generated rows whether the function of an arc is linear, once for each version of its code.

    The results of two halves of the rows must add up to the result of all rows, and an empty table must give
    an empty result.

    Args:
        context: the context of the pipeline; its store keeps the certificate.
        spark: the session.
        code: the digest of the function.
        results: the function; it returns a DataFrame for each table that the arc writes.
        table: the table that the arc reads.
        ddl: the columns of that table.

    Raises:
        BoundExceeded: the results are too large, or the test takes too long.
    """
    digest = hashlib.sha256(repr((certificates.FORMAT, "linear", code, ddl)).encode()).hexdigest()[:32]
    cluster = context.place.cluster
    stored = context.store.run(lambda tx: certificates.read(tx, cluster, digest))
    if stored is not None:
        return stored
    bounds = Bounds()
    with bounds.watch(spark, context.clock):
        rows, rows_of = _arc_results(spark, digest, results, table, ddl, bounds)
    why = ""
    for first in range(0, len(rows_of), 4):
        of_all, of_half, of_other_half, of_none = rows_of[first : first + 4]
        differs = difference(of_all, [*of_half, *of_other_half])
        if differs is not None:
            why = f"the results of two halves of the rows differ from the result of all rows: {differs}"
        elif of_none:
            why = f"an empty table gives {len(of_none)} rows"
    certificate = ViewCertificate(equal=not why, why=why[:1000], compared=rows)
    context.store.run(lambda tx: certificates.write(tx, cluster, digest, certificate))
    return certificate


def _arc_results(
    spark: "SparkSession",
    digest: str,
    results: "Callable[[DataFrame], Sequence[DataFrame]]",
    table: str,
    ddl: str,
    bounds: Bounds,
) -> "tuple[int, list[list[Value]]]":
    """Return the number of generated rows, and four results for each sink.

    They are the results for all rows, for each of the two halves, and for an empty table.
    """
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
        return len(rows), collect_rows(spark, queries, bounds=bounds)


def _first_error(error: Exception) -> Exception:
    """Return the first error of a chain. After Spark has ended, cleaning up raises further errors."""
    while isinstance(error.__context__, Exception):
        error = error.__context__
    return error


def _frame(spark: "SparkSession", table: str, ddl: str, rows: "Sequence[Row]") -> "DataFrame":
    contents = TableContents({table: ddl})
    contents.apply(Step(inserts={table: rows}))
    return contents.frame(spark, table)
