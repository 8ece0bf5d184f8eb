"""Value placement: store and copy values for `put`, `clone` and `take_ownership` (FUT-31, FUT-33).

A task may write segments in addition to its result. It reports each segment to its supervisor before it
writes a row that refers to the segment. So the segment outlives the task's process. When the process ends,
segments that it did not report are deleted.
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
    """Stores values and copies of results for one client."""

    def __init__(self, link: "Connection") -> None:
        self._link = link

    def put(self, client: "Client", value: object, *, durable: bool) -> bytes:
        """Store a value as a realized future and return the future's id.

        If an earlier attempt of the same task has already stored the value, return the id of that future.
        """
        link, task = self._link, task_context.current_task()
        other = "" if durable or task is None else self._another_worker()
        future_id = link.submissions.new_ids(1)[0]
        result = link.values.store(
            value, future_id, VERSION, durable=durable or not other, subject="the value passed to put()"
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
        stored_id = link.store.run(lambda tx: submit.put(tx, link.keys, spec, result))
        if stored_id != future_id:
            self._discard(future_id, result)
        elif other and result.location.kind == "segment":
            client.clone(client.future(future_id), other).result()
        return stored_id

    def clone(self, client: "Client", future: "Future[Any]", node: str) -> "Future[Any]":
        """Submit a task that runs on `node` and copies a result to that node."""
        return client.submit(clone_here, future.id, resources=[f"node:{node}"])

    def clone_here(self, task: TaskContext, future_id: bytes) -> bool:
        """Copy a result to the worker of this task."""
        return self._copy_here(task, future_id, results.add_copy)

    def take_ownership(self, future: "Future[Any]") -> bool:
        """Copy a result to the worker of this task, and delete every other copy."""
        task = task_context.current_task()
        if task is None:
            raise UsageError(
                "take_ownership() works only inside a task: only a worker can own a result",
                hint="use submit(lambda: client.take_ownership(future), ram=future.size_in_bytes)",
            )
        return self._copy_here(task, future.id, results.transfer)

    def _copy_here(self, task: TaskContext, future_id: bytes, record: Callable[..., bool]) -> bool:
        """Copy a result to this worker and record the copy. Return False if the result has changed."""
        link = self._link
        row = link.completions.read([future_id])[0]
        if row is None:
            raise FutureUnknown(f"future {future_id.hex()} does not exist or was deleted")
        if not isinstance(row, Realized):
            raise UsageError(
                f"future {future_id.hex()} is {row.state.value} and has no result",
                hint="wait for it with result() first",
            )
        if row.result.location.kind == "inline":
            return True
        if row.result.location.kind == "segment" and row.result.location.node == link.owner:
            copy = row.result
        else:
            copy = link.values.clone(row.result, future_id)
            task.keep(copy.location.name)

        def step(tx: Tx) -> bool:
            node = _node_of(tx, link.keys, task)
            return record(tx, link.keys, link.cluster, node, future_id, copy)

        recorded = link.store.run(step)
        if not recorded and copy is not row.result:
            self._discard(future_id, copy)
        return recorded

    def _another_worker(self) -> str:
        """Return the id of another live worker; empty if there is none."""
        link = self._link
        ids = [node.id for node in link.live_workers() if node.id != link.owner and not node.draining]
        return link.chance.choice(ids) if ids else ""

    def _discard(self, future_id: bytes, result: Result) -> None:
        """Delete a stored value that no row refers to."""
        link = self._link
        link.values.delete_object(result)
        if result.location.kind == "segment":
            free = inbox.FreeSegment(future_id, result.location.name)
            link.store.run(lambda tx: inbox.post(tx, link.keys, result.location.node, free))


def _node_of(tx: Tx, keys: FutureKeys, task: TaskContext) -> Node:
    """Return the node of a task. Raise `LeaseLost` if its claim was lost, so nothing is written."""
    row = edges.read(tx, keys, task.id)
    if not isinstance(row, Claimed) or row.tally.epoch != task.epoch:
        raise LeaseLost(f"this worker no longer holds the claim on {task.id.hex()} (epoch {task.epoch})")
    return Node(id=row.holder, epoch=row.node_epoch)


def _value(value: object) -> object:
    return value


def clone_here(future_id: bytes) -> bool:
    """Copy a result to the worker that runs this function.

    `clone` submits this function, and stored futures refer to it by name.
    """
    from tidemill.futures.client.client import connect

    task = task_context.current_task()
    assert task is not None
    return connect().placement.clone_here(task, future_id)
