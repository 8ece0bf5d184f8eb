"""One run: a lot of an arc, with its attempts, their parts, and the futures that make the parts."""

from functools import partial

from tidemill.arcs import declarations, rows
from tidemill.arcs.rows import AnyLot, CompleteLot, MissingLot, PartialLot, RunningLot
from tidemill.errors import ArcUnknown, LotUnknown
from tidemill.futures.client.queries import tries
from tidemill.futures.protocol import rows as future_rows
from tidemill.futures.protocol.rows import Claimed
from tidemill.obs.lines import counted
from tidemill.publish import attempts
from tidemill.publish.attempts import Abandoned, AnyAttempt, Open
from tidemill.store import Tx
from tidemill.ui.model.answers import AttemptLine, PartLine, RunDetail
from tidemill.ui.model.reader import StoreReader

MOST_ATTEMPTS = 20
MOST_PARTS = 100
MOST_GENERATIONS = 100


def detail(reader: StoreReader, arc: str, lot: str, generation: int | None = None) -> RunDetail:
    """Describe a run; by default the newest generation of the lot. Raise `LotUnknown` if it never began."""
    return reader.run(partial(_read, reader=reader, arc=arc, lot=lot, generation=generation))


def _read(tx: Tx, reader: StoreReader, arc: str, lot: str, generation: int | None) -> RunDetail:
    keys = reader.arcs
    page = tx.range(*keys.lot.under(arc, lot), limit=MOST_GENERATIONS, reverse=True, snapshot=True)
    states = {}
    for row in page:
        number = keys.lot.unpack(row.key)[2]
        assert isinstance(number, int)
        states[number] = rows.decode(row.value)
    chosen = generation if generation is not None else max(states, default=0)
    if chosen not in states:
        raise LotUnknown(
            f"{arc!r:.200} has not begun lot {lot!r:.100}", hint="choose a run of the list of runs"
        )
    state = states[chosen]
    try:
        writes = tuple(sink.dataset.name for sink in declarations.read(tx, keys, arc).sinks)
    except ArcUnknown:
        writes = ()
    stored = attempts.attempts_at(tx, keys.publish, arc, lot, chosen, MOST_ATTEMPTS, newest_first=True)
    pipeline, _, name = arc.partition(":")[2].partition("/")
    return RunDetail(
        arc=arc,
        pipeline=pipeline,
        name=name,
        lot=lot,
        generation=chosen,
        generations=tuple(sorted(states)),
        state=_state(tx, reader, state),
        why=_why(state),
        tries=state.tries,
        node=state.node if isinstance(state, RunningLot) else "",
        requested=bool(tx.range(*keys.request.under(arc, lot), limit=1, snapshot=True)),
        writes=writes,
        attempts=tuple(_attempt(tx, reader, attempt) for attempt in stored),
    )


def _state(tx: Tx, reader: StoreReader, state: AnyLot) -> str:
    if isinstance(state, RunningLot) and not rows.is_held(tx, reader.arcs, state):
        return "lost"
    return state.state.value


def _why(state: AnyLot) -> str:
    match state:
        case PartialLot():
            failed = f"{counted(len(state.failed), 'part')} failed: " if state.failed else ""
            return failed + state.error
        case MissingLot():
            return state.error
        case RunningLot() | CompleteLot():
            return ""


def _attempt(tx: Tx, reader: StoreReader, attempt: AnyAttempt) -> AttemptLine:
    draft = attempt.draft
    at = attempt.opened_at if isinstance(attempt, Open) else attempt.at
    names = attempts.parts(tx, reader.keys, draft.id, limit=MOST_PARTS + 1)
    number = attempt.parts if isinstance(attempt, Open) and attempt.parts is not None else len(names)
    return AttemptLine(
        id=draft.id,
        state=attempt.state.value,
        node=attempt.node if isinstance(attempt, Open) else "",
        ago_s=max(0, tx.now() - at) / 1e6,
        code=draft.code[:16],
        why=attempt.why if isinstance(attempt, Abandoned) else "",
        parked=isinstance(attempt, Open) and attempt.parked,
        inputs=tuple(f"{each.dataset} {each.lot}" for each in draft.inputs[:MOST_PARTS]),
        parts=_parts(tx, reader, draft.id, names[:MOST_PARTS]),
        more_parts=max(0, number - MOST_PARTS),
    )


def _parts(tx: Tx, reader: StoreReader, attempt: str, names: list[str]) -> tuple[PartLine, ...]:
    """Return the parts that are listed, then those that only a future names."""
    index = tx.range(*reader.runners.part.under(attempt), limit=MOST_PARTS, snapshot=True)
    keys = reader.futures
    spaces = (keys.spec, keys.future, keys.error)
    raws = iter(tx.get_many([space[row.value] for row in index for space in spaces]))
    lines: dict[str, PartLine] = {name: PartLine(name=name) for name in names}
    for row, spec, state, error in zip(index, raws, raws, raws, strict=True):
        if spec is None or state is None:
            continue
        name = future_rows.decode_spec(spec).name.rpartition(" ")[2]
        decoded = future_rows.decode_row(state)
        failure = None if error is None else future_rows.decode_failure(error)
        held = decoded if isinstance(decoded, Claimed) else None
        lines[name] = PartLine(
            name=name,
            future=row.value.hex(),
            state=decoded.state.value,
            node="" if held is None else held.holder,
            tries=tries(decoded.tally),
            claimed_s=0.0 if held is None else max(0, tx.now() - held.claimed_at) / 1e6,
            error="" if failure is None else ": ".join(filter(None, (failure.type, failure.message))),
            traceback="" if failure is None else failure.traceback,
        )
    return tuple(lines.values())
