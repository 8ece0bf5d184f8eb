"""Mutants of futures: each one is a plausible mistake in one function.

A mutant patches the real function while its context is open. The simulation must catch every mutant: it would
not notice a missed one in the real code either.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from tidemill.cluster import nodes
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.nodes import Node
from tidemill.futures.protocol import cancel, claim, depend, edges, finish, reap, results, rows, submit
from tidemill.futures.protocol.claim import Claim, check_held
from tidemill.futures.protocol.finish import Completion
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import AnyRow, AttemptCounts, Claimed, Realized, Spec
from tidemill.futures.protocol.states import FutureEdge
from tidemill.futures.worker import ledger
from tidemill.store import Row, Tx

Mutate = Callable[[pytest.MonkeyPatch], None]

MUTANTS: dict[str, Mutate] = {}


def mutant(mutate: Mutate) -> Mutate:
    MUTANTS[mutate.__name__.replace("_", " ")] = mutate
    return mutate


@contextmanager
def mutated(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        MUTANTS[name](patch)
        yield


# --- completions


@mutant
def a_completion_without_the_fence(patch: pytest.MonkeyPatch) -> None:
    """A result is written even if the claim or the lease is over."""

    def realize_many(
        tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, items: Sequence[Completion]
    ) -> list[bool]:
        results = []
        for item in items:
            row = edges.read(tx, keys, item.claim.id)
            results.append(isinstance(row, Claimed))
            if isinstance(row, Claimed):
                new = Realized(tally=row.tally, result=item.result, at=tx.now())
                edges.move(tx, keys, item.spec, row, FutureEdge.REALIZE, new)
                if item.result.location.kind == "segment":
                    submit.record_copy(tx, keys, item.spec, item.result)
                if row.tally.dependents:
                    tx.set(keys.cursor[item.claim.id], b"")
        return results

    patch.setattr(finish, "realize_many", realize_many)


@mutant
def rounds_that_do_not_check_the_lease(patch: pytest.MonkeyPatch) -> None:
    """Rounds trust the node's own belief, and the rows of their claims."""
    check = nodes.check

    def lenient(tx: Tx, keys: ClusterKeys, node: Node, *, lock: bool = False) -> Node:
        return node if lock else check(tx, keys, node)

    patch.setattr(finish, "nodes", _With(nodes, check=lenient))
    patch.setattr(claim, "check_time", lambda tx, cluster, node: None)


@mutant
def a_failure_without_the_fence(patch: pytest.MonkeyPatch) -> None:
    """The outcome of an old attempt overwrites the current one."""

    def ours(tx: Tx, keys: FutureKeys, cluster: ClusterKeys, node: Node, claim: Claim) -> Claimed:
        row = edges.read(tx, keys, claim.id)
        return row if isinstance(row, Claimed) else check_held(row, claim)

    patch.setattr(finish, "_check_claim", ours)


# --- claims


@mutant
def a_reap_without_the_next_epoch(patch: pytest.MonkeyPatch) -> None:
    def reaped(tx: Tx, keys: FutureKeys, future_id: bytes, row: Claimed) -> AnyRow:
        spec = edges.must_read_spec(tx, keys, future_id)
        new = submit.unclaimed(tx, keys, spec, row.tally)
        edges.move(tx, keys, spec, row, FutureEdge.RELINQUISH, new)
        return new

    patch.setattr(reap, "reap", reaped)


@mutant
def a_reaper_that_takes_from_the_living(patch: pytest.MonkeyPatch) -> None:
    """A node that renews late counts as dead before its lease expires."""
    patch.setattr(
        reap, "_has_lease", lambda node, now_us: node is not None and node.expires_at > now_us + 4_000_000
    )


@mutant
def a_reaper_that_never_comes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reap, "nodes_to_reap", lambda tx, keys, cluster: [])


@mutant
def a_claim_that_leaves_the_ready_row(patch: pytest.MonkeyPatch) -> None:
    take_lane = claim._take_lane

    def leave(tx: Tx, *args: Any) -> list[Row]:
        claims = take_lane(tx, *args)
        for row in claims:
            tx.set(row.key, row.value)
        return claims

    patch.setattr(claim, "_take_lane", leave)


@mutant
def a_claim_under_the_old_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "edges", _With(edges, bump=lambda tally: tally))


@mutant
def a_drain_that_forgets_the_holders_pointer(patch: pytest.MonkeyPatch) -> None:
    def give_back(tx: Tx, keys: FutureKeys, future_id: bytes, row: Claimed) -> AnyRow:
        spec = edges.must_read_spec(tx, keys, future_id)
        new = submit.unclaimed(tx, keys, spec, edges.bump(row.tally))
        edges.enter(tx, keys, spec, new)
        return new

    patch.setattr(finish, "give_back", give_back)


@mutant
def a_worker_that_does_not_look_for_claims_it_does_not_know_of(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger.Ledger, "release_unknown_claims", lambda ledger, node, jobs: (0, False))


# --- dependents


@mutant
def dependents_woken_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """Without a cursor, dependents are notified afterwards, and the wakeup may be lost."""
    realize_many = finish.realize_many

    def no_cursor(tx: Tx, keys: FutureKeys, *args: Any) -> list[bool]:
        results = realize_many(tx, keys, *args)
        for item in args[-1]:
            tx.clear(keys.cursor[item.claim.id])
        return results

    def end(
        tx: Tx, keys: FutureKeys, spec: Spec, old: AnyRow, edge: edges.Path, new: AnyRow, failure: Any = None
    ) -> AnyRow:
        edges.move(tx, keys, spec, old, edge, new)
        if failure is not None:
            edges.set_failure(tx, keys, spec.id, failure)
        return new

    patch.setattr(depend, "end", end)
    patch.setattr(finish, "realize_many", no_cursor)


@mutant
def a_submit_that_does_not_mark_its_inputs(patch: pytest.MonkeyPatch) -> None:
    """The upstream future does not know its dependents, and wakes none."""
    attach = submit.attach

    def forgetful(tx: Tx, keys: FutureKeys, spec: Spec, **options: Any) -> Any:
        attached = attach(tx, keys, spec, **options)
        for upstream in spec.inputs:
            row = edges.read(tx, keys, upstream)
            if row is not None:
                tally = msgspec.structs.replace(row.tally, dependents=False)
                tx.set(keys.future[upstream], rows.encode(msgspec.structs.replace(row, tally=tally)))
        return attached

    patch.setattr(submit, "attach", forgetful)


@mutant
def an_input_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """A served input is not marked, so the next page counts it again."""

    def tell(
        tx: Tx,
        keys: FutureKeys,
        upstream: bytes,
        row: AnyRow,
        spec: Spec,
        state: Any,
        mark: bytes,
        failure: Any,
    ) -> None:
        if isinstance(row, Realized) and isinstance(state, rows.Blocked):
            depend._count_input(tx, keys, spec, state)

    patch.setattr(depend, "_notify_one", tell)


# --- results, cancels, keys


@mutant
def a_loss_reported_without_its_version(patch: pytest.MonkeyPatch) -> None:
    """The second reader of a lost result loses the one that was computed for the first."""
    lose = results.lose

    def any_version(
        tx: Tx, keys: FutureKeys, cluster: ClusterKeys, future_id: bytes, version: int, **options: Any
    ) -> AnyRow | None:
        row = edges.read(tx, keys, future_id)
        version = row.result.version if isinstance(row, Realized) else version
        return lose(tx, keys, cluster, future_id, version, **options)

    patch.setattr(results, "lose", any_version)


@mutant
def a_reconstruction_that_counts_as_an_attempt(patch: pytest.MonkeyPatch) -> None:
    def bump(tally: AttemptCounts, **changes: Any) -> AttemptCounts:
        if "rebuilds" in changes:
            changes["exceptions"] = tally.exceptions + 1
        return edges.bump(tally, **changes)

    patch.setattr(results, "edges", _With(edges, bump=bump))


@mutant
def a_cancel_that_ends_a_claim_and_leaves_its_holder(patch: pytest.MonkeyPatch) -> None:
    end = cancel.cancel

    def at_once(tx: Tx, keys: FutureKeys, future_id: bytes) -> AnyRow:
        row = edges.read(tx, keys, future_id)
        if isinstance(row, Claimed):
            new = rows.Cancelled(tally=row.tally, at=tx.now())
            tx.set(keys.future[future_id], rows.encode(new))
            return new
        return end(tx, keys, future_id)

    patch.setattr(cancel, "cancel", at_once)


@mutant
def an_idempotency_key_that_nobody_looks_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(submit, "existing_id", lambda tx, keys, spec: None)


@mutant
def retries_one_too_many(patch: pytest.MonkeyPatch) -> None:
    from tidemill.futures.protocol import retries

    judge: Callable[..., Any] = retries.decide

    def generous(*args: Any, **options: Any) -> Any:
        spec = msgspec.structs.replace(args[4], max_retries=args[4].max_retries + 1)
        return judge(*args[:4], spec, *args[5:], **options)

    patch.setattr(retries, "decide", generous)


class _With:
    """A module with some names replaced, for one of its users."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self.__dict__.update({**vars(module), **replaced})
