"""Certificates: a view's circuit was compared with its query, once for each code of it (DBSP-19).

(C, "certificate", digest)     the verdict

When a view is created its circuit, interpreted by plain Spark, is compared with the query itself on
generated steps: duplicates, NULL, NaN, deletions, empty tables, a moved clock. A circuit that differs must
not be run: the view stays on the rung *full*, which runs the query as it was written, and that is told. The
verdict is kept under a digest of all that decides it, so that it is found again at the next start.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from tidemill.events import Event
from tidemill.spark import schema
from tidemill.spark.sessions import expecting_errors
from tidemill.store import Space, Tx
from tidemill.views.certify import generated_steps
from tidemill.views.certify.equality import Row as Value
from tidemill.views.certify.equality import difference, equality_of
from tidemill.views.certify.judge import Case, Judge, Verdict, Written
from tidemill.views.certify.query_results import collected
from tidemill.views.certify.table_contents import Row, Step, TableContents
from tidemill.views.circuit.interpreter import interpret
from tidemill.views.circuit.operators import Opaque, ViewOutput
from tidemill.views.circuit.render import Renderer
from tidemill.views.circuit.rungs import rungs
from tidemill.views.spark.step_time import clock_values, reads_clock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 4
"""Of the generated steps and of the comparison: another one certifies every view anew."""


class ViewCertificate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What certification found.

    - equal: the circuit gave what the query gave, after every step.
    - why: what differed; or why there was nothing to compare.
    - compared, loose: steps; loose are those in which Spark itself had several answers.
    """

    equal: bool
    kind: str = "exact"
    why: str = ""
    compared: int = 0
    loose: int = 0
    raised: int = 0


class ViewCertified(Event, frozen=True, kw_only=True):
    """A view's circuit gave what plain Spark gives."""

    pipeline: str
    view: str
    kind: str
    steps: int


class ViewNotCertified(Event, frozen=True, kw_only=True):
    """A view's circuit gave something else than plain Spark: the view is recomputed in every step."""

    pipeline: str
    view: str
    why: str


_decoder = msgspec.msgpack.Decoder(ViewCertificate)


def digest_of(code: str, output: ViewOutput) -> str:
    """What a certificate is kept under: the view's code, and the circuit that was made of it."""
    return hashlib.sha256(repr((FORMAT, code, output.fingerprint)).encode()).hexdigest()[:32]


def digest_of_function(code: str, declared: str, tables: Mapping[str, str]) -> str:
    """What the certificate of a function is kept under: its code, and what it was declared to be."""
    said = repr((FORMAT, code, declared, sorted(tables.items())))
    return hashlib.sha256(said.encode()).hexdigest()[:32]


def read(tx: Tx, cluster: str, digest: str) -> ViewCertificate | None:
    """A certificate; None where that code was never certified."""
    raw = tx.get(_space(cluster)[digest])
    return None if raw is None else _decoder.decode(raw)


def write(tx: Tx, cluster: str, digest: str, certificate: ViewCertificate) -> None:
    """Keep a certificate."""
    tx.set(_space(cluster)[digest], msgspec.msgpack.encode(certificate), quiet=True)


def certify(
    spark: "SparkSession",
    name: str,
    sql: str,
    output: ViewOutput,
    tables: Mapping[str, str],
    *,
    written: ViewOutput | None = None,
    seed: int = 0,
) -> ViewCertificate:
    """Compare a view's circuit with its query, by one Spark job (a few more where values make it raise).

    Args:
        spark: a session with the pinned settings.
        name: of the view.
        sql: the query as it was written.
        output: the circuit that would be run for it.
        tables: the columns of what it reads.
        written: the circuit before any rewrite: the oracle of a view whose order leaves ties.
        seed: another one makes other rows.
    """
    kind = equality_of(output)
    if _unsteady(output):
        return ViewCertificate(
            equal=True, kind="none", why="it is not the same twice, so there is nothing to compare"
        )
    if isinstance(output.input, Opaque):
        return ViewCertificate(equal=True, kind=kind.name, why="its query is run as it is written")
    keyed = None if written is None else _text(written)
    case = Case(name, sql, _text(output), kind, keyed)
    clock = reads_clock(sql, [column for text in tables.values() for column in _columns(text)])
    with expecting_errors():  # overflows of generated values, which both sides must raise
        verdict: Verdict = Judge(spark, tables).run(
            [case], generated_steps.generate_steps(tables, seed=seed, clock=clock)
        )
    why = "" if verdict else str(verdict.mismatches[0])
    if verdict.raised == verdict.compared:
        why = "it raises on every generated step, so nothing could be compared"
    return ViewCertificate(
        equal=not why,
        kind=kind.name,
        why=why[:2000],
        compared=verdict.compared,
        loose=verdict.loose,
        raised=verdict.raised,
    )


def _text(output: ViewOutput) -> Written:
    return lambda now: interpret(output, Renderer(clock_values(now)))


def _columns(ddl: str) -> list[str]:
    return list(schema.parse(ddl).names)


def _unsteady(output: ViewOutput) -> bool:
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
) -> ViewCertificate:
    """Try out a function that is declared keyed by these columns, or (without any) linear; one Spark job.

    Args:
        spark: a session with the pinned settings.
        function: of frames, in the order of `reads`.
        reads: names of tables.
        tables: their columns.
        keyed_by: the columns of the key.
        seed: another one makes other rows.
    """
    contents = TableContents(tables)
    told: list[tuple[list[Tables], list[Tables]]] = []  # whose results together must be equal
    for step in generated_steps.generate_steps(tables, seed=seed)[:3]:
        before = {name: contents.rows(name) for name in tables}
        contents.apply(step)
        after = {name: contents.rows(name) for name in tables}
        if keyed_by:
            told.append(([after], _parts(after, tables, keyed_by)))
        else:
            told.append(([after, step.deletes], [before, step.inserts]))
    asked = [rows for left, right in told for rows in (*left, *right)]
    try:
        with expecting_errors():
            found = iter(_results(spark, function, reads, tables, asked))
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        why = f"it raises on generated rows: {' '.join(str(error).split())[:300]}"
        return ViewCertificate(equal=False, kind="none", why=why)
    for number, (left, right) in enumerate(told):
        one: list[Value] = [row for _ in left for row in next(found)]
        other: list[Value] = [row for _ in right for row in next(found)]
        differs = difference(one, other)
        if differs is not None:
            said = "of parts cut between keys" if keyed_by else "of the change"
            why = f"what it makes {said} is not the change of what it makes, after step {number}: {differs}"
            return ViewCertificate(equal=False, why=why[:2000], compared=number + 1)
    return ViewCertificate(equal=True, compared=len(told))


def _parts(rows: Tables, tables: Mapping[str, str], keyed_by: Sequence[str]) -> list[Tables]:
    """The tables in two parts, by the value of the key; one that has no such columns is whole in both."""
    keyed = [name for name, ddl in tables.items() if set(keyed_by) <= set(schema.parse(ddl).names)]
    keys = Counter(_key(row, keyed_by) for name in keyed for row in rows[name])
    first = set(sorted(keys)[::2])
    return [
        {
            name: [row for row in some if name not in keyed or (_key(row, keyed_by) in first) is part]
            for name, some in rows.items()
        }
        for part in (True, False)
    ]


def _key(row: Row, keyed_by: Sequence[str]) -> str:
    # Both zeros are one key, as in Spark's own grouping.
    return repr([0.0 if row.get(name) == 0 else row.get(name) for name in keyed_by])


def _results(
    spark: "SparkSession",
    function: "Callable[..., DataFrame]",
    reads: Sequence[str],
    tables: Mapping[str, str],
    asked: Sequence[Tables],
) -> list[list[Value]]:
    with ExitStack() as stack:
        texts = []
        for rows in asked:
            contents = TableContents(tables)
            contents.apply(Step(inserts=rows))
            view = f"tidemill_function_{next(_numbers)}"
            function(*(contents.frame(spark, name) for name in reads)).createOrReplaceTempView(view)
            stack.callback(spark.catalog.dropTempView, view)
            texts.append(f"SELECT * FROM {view}")  # noqa: S608
        return collected(spark, texts, small=True)
