"""Certificates: records that the circuit of a view was compared with its query (DBSP-18, DBSP-19).

(C, "certificate", digest)     the result of the comparison

When a view is created, plain Spark runs both its query and its circuit on generated steps. The steps contain
duplicates, NULL, NaN, deletions and empty tables, and the time advances between steps. If the results differ,
the view does not use the circuit: it stays on the rung *full*, which runs the original query, and an event
reports this. The result is stored under a digest of everything that it depends on, so the next start does not
repeat the comparison.

A node records its attempt before the comparison starts (`begin`), because a query can end Spark or the whole
process. If the stored row still names a node that is dead, the comparison has failed. The view is then
recomputed in each step, as if the results had differed, and no later run repeats the attempt. An interrupted
node withdraws its attempt.

A view that is a function is tested against its declaration:

    linear     Given only the changed rows, the function returns the change in its result. After each
               generated step, the result is the previous result, plus the result for the inserted rows, minus
               the result for the deleted rows.
    keyed by   The rows of a key depend only on input rows of that key. If the tables are divided by key into
               two parts, the two results together are the result for the complete tables.

A function that fails the test stays on the rung *full*, and the certificate says what differed.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Final

import msgspec

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.events import Event
from tidemill.spark import schema
from tidemill.spark.sessions import expecting_errors
from tidemill.store import Space, Tx
from tidemill.views.certify import generated_steps
from tidemill.views.certify.bounds import Bounds, is_query_error
from tidemill.views.certify.equality import Row as Value
from tidemill.views.certify.equality import difference, equality_of
from tidemill.views.certify.judge import Case, Judge, TimedQuery, Verdict
from tidemill.views.certify.query_results import collect_rows
from tidemill.views.certify.table_contents import Row, Step, TableContents
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import Opaque, ViewOutput
from tidemill.views.circuit.render import Renderer
from tidemill.views.circuit.rungs import rungs
from tidemill.views.circuit.size_arguments import sized_columns
from tidemill.views.spark.step_time import clock_values, reads_clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 4
"""The version of the generated steps and of the comparison; a new version certifies every view again."""


class ViewCertificate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a certification.

    - equal: whether the circuit and the query gave the same result after every step.
    - why: what differed, or why there was nothing to compare.
    - compared: the number of steps compared.
    - loose: the number of these steps in which Spark itself has several correct results.
    - raised: the number of these steps in which both sides raised an error.
    - attempted_by: the node that has begun the comparison and has not finished it.
    """

    equal: bool
    kind: str = "exact"
    why: str = ""
    compared: int = 0
    loose: int = 0
    raised: int = 0
    attempted_by: str = ""

    @property
    def failed(self) -> bool:
        """Whether there is no result, because the comparison failed or has not finished."""
        return self.kind == FAILED

    @property
    def reason(self) -> str:
        """Why the comparison failed, or which node has not finished it."""
        if self.attempted_by:
            return f"node {self.attempted_by} has begun the comparison and has not finished it"
        return self.why


FAILED: Final = "failed"
UNFINISHED: Final = ViewCertificate(
    equal=False, kind=FAILED, why="the comparison ended Spark or the process that ran it"
)


class Attempt(Enum):
    """What `begin` returns if there is no certificate yet."""

    BEGUN = "begun"
    RUNNING = "running"
    DIED = "died"


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


_decoder = msgspec.msgpack.Decoder(ViewCertificate)


def digest_of(code: str, output: ViewOutput) -> str:
    """Return the digest of a view's code and circuit, under which its certificate is stored."""
    return hashlib.sha256(repr((FORMAT, code, output.fingerprint)).encode()).hexdigest()[:32]


def digest_of_function(code: str, declared: str, tables: Mapping[str, str]) -> str:
    """Return the digest of a function's code and declaration, under which its certificate is stored."""
    content = repr((FORMAT, code, declared, sorted(tables.items())))
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def read(tx: Tx, cluster: str, digest: str) -> ViewCertificate | None:
    """Read a certificate; None if this code was never certified."""
    raw = tx.get(_space(cluster)[digest])
    return None if raw is None else _decoder.decode(raw)


def write(tx: Tx, cluster: str, digest: str, certificate: ViewCertificate) -> None:
    """Store a certificate."""
    tx.set(_space(cluster)[digest], msgspec.msgpack.encode(certificate), quiet=True)


def begin(tx: Tx, cluster: str, digest: str, node: str) -> ViewCertificate | Attempt:
    """Record that a node begins a comparison, before the node does anything that could end the process.

    Return the certificate if there is one. If another node is running the comparison, return RUNNING. If that
    node is dead, store that the comparison failed, and return DIED.
    """
    stored = read(tx, cluster, digest)
    if stored is None:
        write(tx, cluster, digest, msgspec.structs.replace(UNFINISHED, attempted_by=node))
        return Attempt.BEGUN
    if not stored.attempted_by:
        return stored
    other = nodes.read(tx, ClusterKeys(cluster), stored.attempted_by)
    if other is not None and other.expires_at > tx.now():
        return Attempt.RUNNING
    write(tx, cluster, digest, UNFINISHED)
    return Attempt.DIED


def finish(tx: Tx, cluster: str, digest: str, node: str, certificate: ViewCertificate) -> bool:
    """Store the result of an attempt; return False if the attempt no longer belongs to this node."""
    stored = read(tx, cluster, digest)
    if stored is None or stored.attempted_by != node:
        return False
    write(tx, cluster, digest, certificate)
    return True


def withdraw(tx: Tx, cluster: str, digest: str, node: str) -> None:
    """Remove this node's interrupted attempt; a later run starts the comparison again."""
    stored = read(tx, cluster, digest)
    if stored is not None and stored.attempted_by == node:
        tx.clear(_space(cluster)[digest])


def forget_failure(tx: Tx, cluster: str, digest: str) -> bool:
    """Remove a failed comparison, so that the next run repeats it; return False if there is none."""
    stored = read(tx, cluster, digest)
    if stored is None or not stored.failed or stored.attempted_by:
        return False
    tx.clear(_space(cluster)[digest])
    return True


def certify(
    spark: "SparkSession",
    name: str,
    sql: str,
    output: ViewOutput,
    tables: Mapping[str, str],
    *,
    written: ViewOutput | None = None,
    seed: int = 0,
    bounds: Bounds | None = None,
) -> ViewCertificate:
    """Compare the circuit of a view with its query, in one Spark job (or a few, if values raise errors).

    Args:
        spark: a session with the pinned settings.
        name: the name of the view.
        sql: the original query.
        output: the circuit that would run.
        tables: the columns of the tables that the query reads.
        written: the circuit before any rewrite; the comparison uses it if the query's sort order leaves ties.
        seed: the seed of the generated rows.
        bounds: limits on the size of results and on the time; exceeding one raises `BoundExceeded`.
    """
    kind = equality_of(output)
    if _is_nondeterministic(output):
        return ViewCertificate(
            equal=True, kind="none", why="not deterministic, so there is nothing to compare"
        )
    if isinstance(output.input, Opaque):
        return ViewCertificate(equal=True, kind=kind.name, why="the original query runs unchanged")
    keyed = None if written is None else _text(written)
    case = Case(name, sql, _text(output), kind, keyed)
    clock = reads_clock(sql, [column for text in tables.values() for column in _columns(text)])
    with expecting_errors():  # generated values overflow, and both sides must raise an error
        sized = sized_columns(written or output)
        steps = generated_steps.generate_steps(tables, seed=seed, clock=clock, sized=sized)
        verdict: Verdict = Judge(spark, tables, bounds=bounds).run([case], steps)
    why = "" if verdict else str(verdict.mismatches[0])
    if verdict.raised == verdict.compared:
        why = "raises an error in every generated step, so nothing could be compared"
    return ViewCertificate(
        equal=not why,
        kind=kind.name,
        why=why[:2000],
        compared=verdict.compared,
        loose=verdict.loose,
        raised=verdict.raised,
    )


def _text(output: ViewOutput) -> TimedQuery:
    return lambda now: interpret(output, Renderer(clock_values(now)))


def _columns(ddl: str) -> list[str]:
    return list(schema.parse(ddl).names)


def _is_nondeterministic(output: ViewOutput) -> bool:
    return not all(placed.deterministic for placed in rungs(output).values())


def _space(cluster: str) -> Space:
    return Space(cluster, "certificate")


# --- functions ----------------------------------------------------------------------------------------------

Tables = Mapping[str, Sequence[Row]]
_numbers = count()


def certify_function(
    spark: "SparkSession",
    function: "Callable[..., DataFrame]",
    reads: Sequence[str],
    tables: Mapping[str, str],
    *,
    keyed_by: Sequence[str] = (),
    seed: int = 0,
    bounds: Bounds | None = None,
) -> ViewCertificate:
    """Test in one Spark job whether a function is keyed by `keyed_by`, or linear if `keyed_by` is empty.

    Args:
        spark: a session with the pinned settings.
        function: takes DataFrames in the order of `reads`, and returns a DataFrame.
        reads: the names of the tables that the function reads.
        tables: the columns of the tables.
        keyed_by: the columns of the key.
        seed: the seed of the generated rows.
        bounds: limits on the size of results and on the time; exceeding one raises `BoundExceeded`.
    """
    contents = TableContents(tables)
    equations: list[tuple[list[Tables], list[Tables]]] = []  # both sides must have equal results
    for step in generated_steps.generate_steps(tables, seed=seed)[:3]:
        before = {name: contents.rows(name) for name in tables}
        contents.apply(step)
        after = {name: contents.rows(name) for name in tables}
        if keyed_by:
            equations.append(([after], _parts(after, tables, keyed_by)))
        else:
            equations.append(([after, step.deletes], [before, step.inserts]))
    inputs = [rows for left_tables, right_tables in equations for rows in (*left_tables, *right_tables)]
    try:
        with expecting_errors():
            results = iter(_results(spark, function, reads, tables, inputs, bounds))
    except Exception as error:
        if not is_query_error(error):
            raise
        why = f"raises an error on generated rows: {' '.join(str(error).split())[:300]}"
        return ViewCertificate(equal=False, kind="none", why=why)
    for number, (left_tables, right_tables) in enumerate(equations):
        left_rows: list[Value] = [row for _ in left_tables for row in next(results)]
        right_rows: list[Value] = [row for _ in right_tables for row in next(results)]
        diff = difference(left_rows, right_rows)
        if diff is not None:
            rule = (
                "the results for two parts of the tables, divided by key, are not the result for all rows"
                if keyed_by
                else "the result for the changed rows is not the change in the result"
            )
            why = f"{rule}, after step {number}: {diff}"
            return ViewCertificate(equal=False, why=why[:2000], compared=number + 1)
    return ViewCertificate(equal=True, compared=len(equations))


def _parts(rows: Tables, tables: Mapping[str, str], keyed_by: Sequence[str]) -> list[Tables]:
    """Divide the tables into two parts by their keys; a table without the key columns is in both parts."""
    keyed = [name for name, ddl in tables.items() if set(keyed_by) <= set(schema.parse(ddl).names)]
    keys = Counter(_key(row, keyed_by) for name in keyed for row in rows[name])
    first_keys = set(sorted(keys)[::2])
    return [
        {
            name: [
                row for row in table_rows if name not in keyed or (_key(row, keyed_by) in first_keys) is part
            ]
            for name, table_rows in rows.items()
        }
        for part in (True, False)
    ]


def _key(row: Row, keyed_by: Sequence[str]) -> str:
    # 0.0 and -0.0 are the same key, as in Spark's grouping.
    return repr([0.0 if row.get(name) == 0 else row.get(name) for name in keyed_by])


def _results(
    spark: "SparkSession",
    function: "Callable[..., DataFrame]",
    reads: Sequence[str],
    tables: Mapping[str, str],
    inputs: Sequence[Tables],
    bounds: Bounds | None,
) -> list[list[Value]]:
    with ExitStack() as stack:
        texts = []
        for rows in inputs:
            contents = TableContents(tables)
            contents.apply(Step(inserts=rows))
            view = f"tidemill_function_{next(_numbers)}"
            function(*(contents.frame(spark, name) for name in reads)).createOrReplaceTempView(view)
            stack.callback(spark.catalog.dropTempView, view)
            texts.append(f"SELECT * FROM {view}")  # noqa: S608
        return collect_rows(spark, texts, small=True, bounds=bounds)
