"""Carry out the actions of the page and the API, with the same functions as the command line."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from tidemill.errors import UsageError
from tidemill.futures.client import queries
from tidemill.futures.protocol import requeue
from tidemill.obs.lines import counted
from tidemill.ui.model.answers import Action, ActionResult
from tidemill.ui.model.reader import StoreReader

if TYPE_CHECKING:
    from tidemill.pipeline.lot_requests import LotRequestPlan
    from tidemill.pipeline.pipeline import Pipeline


class Actions:
    """Carries out actions, one at a time.

    Args:
        reader: the store.
        load: imports the pipeline; called for the first action that needs it. None if the server was started
            without a pipeline.
    """

    def __init__(self, reader: StoreReader, load: "Callable[[], Pipeline] | None") -> None:
        self._reader = reader
        self._load = load
        self._lock = threading.Lock()
        self._pipeline: Pipeline | None = None

    def run(self, action: Action) -> ActionResult:
        """Carry out an action; raise an error with a hint if that is not possible."""
        with self._lock:
            if action.name == "requeue":
                return self._requeue(action)
            return self._run(self._of_pipeline(action), action)

    def close(self) -> None:
        with self._lock:
            pipeline, self._pipeline = self._pipeline, None
        if pipeline is not None:
            pipeline.close()

    def _of_pipeline(self, action: Action) -> "Pipeline":
        if self._load is None:
            raise UsageError(
                "the page was started without a pipeline, so it cannot change one",
                hint="start it with -f FILE, or in a folder with a tidemill.toml",
            )
        if self._pipeline is None:
            self._pipeline = self._load()
        if action.pipeline not in ("", self._pipeline.name):
            raise UsageError(
                f"this page can change the pipeline {self._pipeline.name}, not {action.pipeline!r:.200}",
                hint="start the page with the file of that pipeline",
            )
        return self._pipeline

    def _run(self, pipeline: "Pipeline", action: Action) -> ActionResult:
        from tidemill.pipeline import quarantine

        target, lots = action.target, list(action.lots)
        first, last = action.first or None, action.last or None
        match action.name:
            case "retry":
                requested = pipeline.retry(target or None, lots)
                names = tuple(f"{arc} {lot}" for arc, lot in requested)
                message = f"the next run retries {counted(len(names), 'lot')}"
                return ActionResult(message=message if names else f"{target} runs again", changed=names)
            case "pause":
                paused = pipeline.pause(target)
                return ActionResult(message=f"{target} is paused", changed=tuple(paused))
            case "resume":
                resumed = pipeline.resume(target)
                return ActionResult(message=f"{target} is resumed", changed=tuple(resumed))
            case "backfill":
                return _requested(pipeline.backfill(target, lots or None, first=first, last=last))
            case "replay":
                if not lots and first is None and last is None:
                    raise UsageError("no lots to replay were given", hint="pass lots, or first and last")
                return _requested(pipeline.replay(target, lots or None, first=first, last=last))
            case "reingest":
                records = list(quarantine.records(pipeline, target, lots))
                ingested = quarantine.ingest(pipeline, target, records)
                message = f"added {counted(sum(ingested.values()), 'record')} to {target}"
                return ActionResult(message=message, changed=tuple(ingested))
            case "discard":
                discarded = quarantine.discard(pipeline, target, lots)
                message = f"discarded {counted(sum(discarded.values()), 'record')} of {target}"
                return ActionResult(message=message, changed=tuple(discarded))
            case "requeue":
                raise AssertionError("needs no pipeline")
            case _:
                assert_never(action.name)

    def _requeue(self, action: Action) -> ActionResult:
        store, keys = self._reader.store, self._reader.futures
        id_ = queries.find_id(store, keys, action.target)
        store.run(lambda tx: requeue.requeue(tx, keys, id_))
        return ActionResult(message="the future runs again", changed=(id_.hex(),))


def _requested(plan: "LotRequestPlan") -> ActionResult:
    lots = plan.requested
    message = f"runners will produce {counted(len(lots), 'lot')}" if lots else "there is nothing to produce"
    blocked = [lot for lot in plan.lots if lot.action == "blocked"]
    if blocked:
        message += f"; {counted(len(blocked), 'lot')} cannot be produced: {blocked[0].why}"
    return ActionResult(message=message, changed=tuple(f"{lot.arc} {lot.lot}" for lot in lots))
