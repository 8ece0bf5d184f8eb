"""The stages of a plan that show how views are certified, and the test of linear arcs (DBSP-19)."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.pipeline.plan.stages import StageStatus
from tidemill.store import Tx
from tidemill.views.certify import certificates, generated_steps
from tidemill.views.certify.bounds import Bounds
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.certify.equality import Row as Value
from tidemill.views.certify.equality import difference
from tidemill.views.certify.query_results import collect_rows
from tidemill.views.certify.table_contents import Row, Step, TableContents
from tidemill.views.certify.view_tests import FunctionTest, ViewTest
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemill.pipeline.context import PipelineContext


@dataclass(frozen=True)
class Certify(ABC):
    """Shows the test that certifies a view. Runners run the test in the background (`runner.certifier`).

    - certificate: the stored result of the test, or an attempt; None if the test has not begun.
    """

    where: str
    test: ViewTest
    certificate: ViewCertificate | None = None

    @abstractmethod
    def describe(self) -> dict[str, str]: ...

    @property
    def view(self) -> str:
        return self.test.view

    def status(self, tx: Tx, keys: StepKeys) -> StageStatus:
        certificate = certificates.read(tx, keys.lots.cluster, self.test.digest)
        if certificate is None or certificate.open:
            return StageStatus.NEW
        return StageStatus.SAME if certificate.equal else StageStatus.CHANGED

    def apply(self, context: "PipelineContext", holder: str) -> None:
        """Do nothing: the runner certifies the view."""

    def _described(self, kind: str, detail: str) -> dict[str, str]:
        return {"what": kind, "name": self.view, "detail": " ".join(detail.split()), "where": self.where}


@dataclass(frozen=True)
class CertifyView(Certify):
    """Compares the circuit of a view with its query."""

    def describe(self) -> dict[str, str]:
        certificate = self.certificate
        if certificate is None or certificate.open:
            detail = f"its circuit is not compared with plain Spark yet; {pending(certificate)}"
        elif certificate.equal:
            detail = f"equal to plain Spark ({certificate.kind}) after {certificate.compared} generated steps"
            detail = certificate.why or detail
        elif certificate.failed:
            detail = f"could not be compared with plain Spark, so every step recomputes it: {certificate.why}"
        else:
            detail = f"NOT equal to plain Spark, so every step recomputes it: {certificate.why}"
        return self._described("circuit", detail)


@dataclass(frozen=True)
class CertifyFunction(Certify):
    """Tests a view that is a function and is declared linear or keyed."""

    def describe(self) -> dict[str, str]:
        certificate = self.certificate
        assert isinstance(self.test, FunctionTest)
        declared = self.test.declared
        if certificate is None or certificate.open:
            detail = f"declared {declared}; this is not tested yet; {pending(certificate)}"
        elif certificate.equal:
            detail = f"{declared} as declared, after {certificate.compared} generated steps"
        elif certificate.failed:
            detail = f"declared {declared}; this could not be tested: {certificate.why}"
        else:
            detail = f"declared {declared} but is NOT, so every step recomputes it: {certificate.why}"
        return self._described("function", detail)


def pending(certificate: ViewCertificate | None) -> str:
    """Say when a test without a result will have one.

    - certificate: the stored attempt; None if the test has not begun.
    """
    if certificate is None:
        return "the next run does this"
    deaths = f"; {certificate.deaths} earlier attempts ended with their process" if certificate.deaths else ""
    if not certificate.attempted_by:
        return f"the next run tries again{deaths}"
    return f"node {certificate.attempted_by} has begun and has not finished{deaths}"


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


def _frame(spark: "SparkSession", table: str, ddl: str, rows: "Sequence[Row]") -> "DataFrame":
    contents = TableContents({table: ddl})
    contents.apply(Step(inserts={table: rows}))
    return contents.frame(spark, table)
