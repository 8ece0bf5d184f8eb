"""A stage for tests of lots over time: intervals published one by one, and an arc over two tables."""

import json
from collections.abc import Sequence
from typing import Any

from tests.unit.arcs_stage import ArcStage
from tests.unit.attempt_publisher import AttemptPublisher
from tests.unit.lots_stage import FIVE_MINUTES
from tidemill.arcs import lot_requests
from tidemill.arcs.declarations import ArcSpec
from tidemill.arcs.lot_requests import LotRequest, RequestKind, RequestOptions
from tidemill.arcs.work import ArcWork, LotOutcome
from tidemill.lots import lots as lot_rows
from tidemill.lots.keys import DatasetId
from tidemill.lots.manifest import StoredObject
from tidemill.publish.attempts import Draft, Hold, Target
from tidemill.publish.parts import PartClaim, PartSink, PartTask, SinkWritten


class LifeStage(ArcStage):
    """An arc stage with two tables of five minutes, `clicks` and `rates`, and an arc `join` over both."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.clicks, self.rates, self.joined = (
            self.dataset(name, unit=FIVE_MINUTES) for name in ("clicks", "rates", "joined")
        )
        self.tables += [self.clicks, self.rates, self.joined]
        self.parts.code["join"] = lambda rows: {"joined": sorted(rows)}

    def join(self, **changes: Any) -> ArcSpec:
        values = {
            "pipeline": "shop",
            "name": "join",
            "reads": (self.clicks, self.rates),
            "sinks": (PartSink(dataset=self.joined),),
            "code": "join",
            **changes,
        }
        return ArcSpec(**values)

    def lot_of(self, dataset: DatasetId, lot: str, *rows: int, generation: int = 0) -> int:
        """Publish one generation of a lot, with manifest and data; return its position."""
        publisher = AttemptPublisher(self.scope(self.living("writer")))
        target = Target(dataset, lot, generation)
        draft = Draft(
            id=self.scope().new_attempt(),
            author="writer",
            lot=lot,
            generation=generation,
            targets=(target,),
        )
        hold = publisher.open(draft)
        return publisher.publish(hold, [self.written(hold, rows)]).positions[0]

    def written(self, hold: Hold, rows: Sequence[int]) -> lot_rows.LotRow:
        """Write data and manifest of an attempt; return the row to publish."""
        (target,) = hold.draft.targets
        sink = PartSink(dataset=target.dataset)
        task = PartTask(
            kind="append",
            pipeline="",
            author=hold.draft.author,
            code="",
            attempt=hold.draft.id,
            lot=target.lot,
            generation=target.generation,
            key="",
            sinks=(sink,),
        )
        stored: tuple[StoredObject, ...] = ()
        if rows:
            key = PartClaim("a", 1).data_prefix(task, sink) + "0.json"
            info = self.objects.put(key, json.dumps(list(rows)).encode())
            stored = (StoredObject(uri=info.key, size=info.size, rows=len(rows), format="json"),)
        sink_written = SinkWritten(dataset=target.dataset, objects=stored, rows=len(rows))
        part = self.manifests.write_part(hold, "", [sink_written], alone=True, fingerprints={})
        (row,) = self.manifests.finish(hold, [part], {})
        return row

    def enter(
        self, spec: ArcSpec, lot: str, kind: RequestKind, batch: str = "b", parallel: int = 0
    ) -> LotRequest | None:
        return self.run(lot_requests.request, self.keys, spec.id, lot, RequestOptions(kind, batch, parallel))

    def work_off(self, spec: ArcSpec, worker: ArcWork) -> list[LotOutcome]:
        """Make all requested lots, one after the other."""
        outcomes: list[LotOutcome] = []
        while page := self.run(lot_requests.startable, self.keys, [spec]):
            outcomes += [worker.make_requested(spec, request) for request in page]
        return outcomes
