"""Remember what planning found out about queries, in this process and in the store.

Spark and the compiler need about 50 ms for each query. The result depends only on the text of the query, the
tables it mentions, the settings and version of Spark, and the code of Tidemill and of its parser. The row of
a plan has a seal: a digest of all of these and of the plan. If anything has changed, or if another release
wrote the row, or if the row is damaged, its seal differs, and the query is planned again.

There is one row for each view, which the next plan of that view overwrites.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tidemill.pipeline.plan.circuits import ViewCircuit
from tidemill.spark.analyses import release_digest
from tidemill.spark.planning_memo import PlanningMemo, SparkEngine
from tidemill.store import Tx, long_values
from tidemill.views.circuit import stored_circuit
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import Opaque, ViewOutput
from tidemill.views.spark.clock_alarms import ClockUse

if TYPE_CHECKING:
    from tidemill.pipeline.context import PipelineContext

PAGE = 100
PAGE_BYTES = 256 * 1024
"""How many rows one transaction reads, and about how many bytes it writes."""

MOST_BYTES = 512 * 1024
"""The maximum size of a row. The compiler makes larger circuits again in each process."""


@dataclass(frozen=True)
class PlannedQuery:
    """What planning finds out about a query: its circuit, its columns, and how it uses the clock."""

    circuit: ViewCircuit
    ddl: str
    clock: ClockUse | None

    @property
    def opaque(self) -> bool:
        """Whether Tidemill could not compile a part of the query, and keeps it as text."""
        return any(isinstance(operator, Opaque) for operator in walk(self.circuit.written))


class StoredQuery(msgspec.Struct, frozen=True, array_like=True):
    """A row: the plan of a view's query.

    - seal: the digest of `plan` and of everything that the plan depends on.
    - plan: an encoded `_Plan`.
    """

    seal: bytes
    plan: bytes


class _Plan(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a query, the compiler's notes, and the circuit after and before rewrites."""

    ddl: str
    notes: tuple[str, ...]
    circuits: bytes


_row = msgspec.msgpack.Decoder(StoredQuery)
_plan = msgspec.msgpack.Decoder(_Plan)
_planned: PlanningMemo[PlannedQuery] = PlanningMemo()


class PlannedQueries:
    """The planned queries of a pipeline."""

    def __init__(self, context: "PipelineContext", engine: SparkEngine) -> None:
        self._context = context
        self._engine = engine
        self._stored: dict[str, StoredQuery] | None = None  # read when first needed
        self._new: dict[str, StoredQuery] = {}

    def get(
        self,
        view: str,
        facts: tuple[Hashable, ...],
        make: Callable[[], PlannedQuery],
        clock_of: Callable[[ViewOutput], ClockUse | None],
    ) -> PlannedQuery:
        """Return the plan of a view's query: from this process, from the store, or by planning it.

        If a query calls a function that only the user's session knows, its circuit has an opaque operator.
        Such a query is planned each time, because the function may have changed.

        Args:
            view: the name of the view.
            facts: the query, and what its plan depends on besides the compiler and Spark.
            make: plans the query.
            clock_of: returns how the query uses the clock, from its circuit.
        """

        def read_or_make() -> PlannedQuery:
            depends_on = repr((release_digest(), self._engine.version, sorted(self._engine.settings), facts))
            stored = self._stored_query(view)
            if stored is not None and stored.seal == _seal(depends_on, stored.plan):
                return _decoded(stored.plan, clock_of)
            planned = make()
            self._keep(view, depends_on, planned)
            return planned

        return _planned.get((self._engine, facts), read_or_make, keep=lambda query: not query.opaque)

    def _stored_query(self, view: str) -> StoredQuery | None:
        if self._stored is None:
            self._stored = dict(self._read())
        return self._stored.get(view)

    def _read(self) -> Iterator[tuple[str, StoredQuery]]:
        keys, pipeline = self._context.keys, self._context.pipeline
        lo, hi = keys.planned.under(pipeline)
        while True:

            def read(tx: Tx, lo: bytes = lo) -> list[tuple[bytes, StoredQuery]]:
                page = tx.range(lo, hi, limit=PAGE, snapshot=True)
                values = [long_values.complete(tx, keys.more, row.key, row.value) for row in page]
                return [(row.key, _row.decode(value)) for row, value in zip(page, values, strict=True)]

            page = self._context.store.run(read)
            for key, query in page:
                yield str(keys.planned.unpack(key)[1]), query
            if len(page) < PAGE:
                return
            lo = page[-1][0] + b"\x00"

    def _keep(self, view: str, depends_on: str, planned: PlannedQuery) -> None:
        if planned.opaque:
            return
        circuit = planned.circuit
        circuits = stored_circuit.encode([circuit.output, circuit.written])
        plan = msgspec.msgpack.encode(_Plan(planned.ddl, tuple(circuit.notes), circuits))
        if len(plan) <= MOST_BYTES:
            self._new[view] = StoredQuery(_seal(depends_on, plan), plan)

    def store(self) -> None:
        """Store the plans that are new, in transactions of a bounded size. It is safe to repeat this."""
        page: list[tuple[str, bytes]] = []
        size = 0
        for view, query in self._new.items():
            value = msgspec.msgpack.encode(query)
            if page and size + len(value) > PAGE_BYTES:
                self._write(page)
                page, size = [], 0
            page.append((view, value))
            size += len(value)
        self._write(page)
        self._new = {}

    def _write(self, page: Sequence[tuple[str, bytes]]) -> None:
        keys, pipeline = self._context.keys, self._context.pipeline

        def write(tx: Tx) -> None:
            for view, value in page:
                long_values.set_long(tx, keys.more, keys.planned[pipeline, view], value)

        if page:
            self._context.store.run(write)


def _seal(depends_on: str, plan: bytes) -> bytes:
    digest = hashlib.blake2b(depends_on.encode(), digest_size=16)
    digest.update(plan)
    return digest.digest()


def _decoded(raw: bytes, clock_of: Callable[[ViewOutput], ClockUse | None]) -> PlannedQuery:
    """Decode a plan whose seal is right: the code that decodes it is the code that encoded it."""
    plan = _plan.decode(raw)
    output, written = stored_circuit.decode(plan.circuits)
    assert isinstance(output, ViewOutput)
    assert isinstance(written, ViewOutput)
    return PlannedQuery(ViewCircuit(output, plan.notes, written), plan.ddl, clock_of(output))
