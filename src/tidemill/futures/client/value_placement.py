"""Values and copies that a client places itself: put, clone, and taking ownership (FUT-31, FUT-33).

What a task writes beside its result is told to its supervisor before anybody else learns of it, so that it
outlives the task's process; what nobody was told of goes with that process.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemill.cluster.nodes import Node
from tidemill.errors import FutureUnknown, LeaseLost, UsageError
from tidemill.futures.client.submission import child_key
from tidemill.futures.protocol import edges, inbox, results, submit
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import Blob, Claimed, Realized, Result, Spec
from tidemill.futures.values.call_digests import call_digest
from tidemill.futures.values.pickling import PYTHON
from tidemill.futures.values.signatures import sign_spec
from tidemill.futures.worker import task_context
from tidemill.futures.worker.task_context import TaskContext
from tidemill.store import Tx

if TYPE_CHECKING:
    from tidemill.futures.client.client import Client
    from tidemill.futures.client.connection import Connection
    from tidemill.futures.client.future import Future

VERSION = 1


class ValuePlacement:
    """Places values for one client."""

    def __init__(self, link: "Connection") -> None:
        self._link = link

    def put(self, client: "Client", value: object, *, durable: bool) -> bytes:
        """Enter a value as a realised future; its id, or that of the same put of an earlier try."""
        link, task = self._link, task_context.current()
        other = "" if durable or task is None else self._another_worker()
        future_id = link.submissions.new_ids(1)[0]
        result = link.values.store(
            value, future_id, VERSION, durable=durable or not other, what="the value that was put"
        )
        key = child_key(task, call_digest(_value, (value,), {})) if task is not None else ""
        spec = sign_spec(
            link.signer,
            Spec(
                id=future_id,
                name="put",
                code=b"",
                args=Blob(b""),
                key=key,
                parent=task.id if task is not None else b"",
                owner=link.owner,
                durable=durable,
                python=PYTHON,
            ),
        )
        if task is not None and result.location.kind == "segment":
            task.keep(result.location.name)
        entered = link.store.run(lambda tx: submit.put(tx, link.keys, spec, result))
        if entered != future_id:
            self._discard(future_id, result)
        elif other and result.location.kind == "segment":
            client.clone(client.future(future_id), other).result()
        return entered

    def clone(self, client: "Client", future: "Future[Any]", node: str) -> "Future[Any]":
        """Submit a task to a node that makes a copy there."""
        return client.submit(clone_here, future.id, resources=[f"node:{node}"])

    def clone_here(self, task: TaskContext, future_id: bytes) -> bool:
        """Make a copy of a result on the worker of this task."""
        return self._bring(task, future_id, results.add_copy)

    def take_ownership(self, future: "Future[Any]") -> bool:
        """Bring a result to the worker of this task, and have every other copy deleted."""
        task = task_context.current()
        if task is None:
            raise UsageError(
                "only a worker can own a result",
                hint="submit(lambda: client.take_ownership(future), ram=future.size_in_bytes)",
            )
        return self._bring(task, future.id, results.transfer)

    def _bring(self, task: TaskContext, future_id: bytes, enter: Callable[..., bool]) -> bool:
        link = self._link
        row = link.waiting.read([future_id])[0]
        if row is None:
            raise FutureUnknown(f"there is no future {future_id.hex()}, or no longer")
        if not isinstance(row, Realized):
            raise UsageError(f"future {future_id.hex()} is {row.state.value}", hint="await it first")
        if row.result.location.kind == "inline":
            return True
        if row.result.location.kind == "segment" and row.result.location.node == link.owner:
            copy = row.result
        else:
            copy = link.values.clone(row.result, future_id)
            task.keep(copy.location.name)

        def entered(tx: Tx) -> bool:
            here = _here(tx, link.keys, task)
            return enter(tx, link.keys, link.cluster, here, future_id, copy)

        done = link.store.run(entered)
        if not done and copy is not row.result:
            self._discard(future_id, copy)
        return done

    def _another_worker(self) -> str:
        """A live worker that is not ours; empty when there is none."""
        link = self._link
        others = [node.id for node in link.live_workers() if node.id != link.owner and not node.draining]
        return link.chance.choice(others) if others else ""

    def _discard(self, future_id: bytes, result: Result) -> None:
        """Delete what was stored and is not wanted: an earlier try had put it already."""
        link = self._link
        link.values.delete_object(result)
        if result.location.kind == "segment":
            free = inbox.FreeSegment(future_id, result.location.name)
            link.store.run(lambda tx: inbox.post(tx, link.keys, result.location.node, free))


def _here(tx: Tx, keys: FutureKeys, task: TaskContext) -> Node:
    """The node of a task, by its claim: `LeaseLost` when that is over, and nothing is written for it."""
    row = edges.read(tx, keys, task.id)
    if not isinstance(row, Claimed) or row.tally.epoch != task.epoch:
        raise LeaseLost(f"the claim on {task.id.hex()} under epoch {task.epoch} is over")
    return Node(id=row.holder, epoch=row.node_epoch)


def _value(value: object) -> object:
    return value


def clone_here(future_id: bytes) -> bool:
    """The task that `clone` submits."""
    from tidemill.futures.client.client import connect

    task = task_context.current()
    assert task is not None
    return connect().putting.clone_here(task, future_id)
