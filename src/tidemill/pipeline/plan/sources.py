"""Planning of sources: what arrives from outside, and the tables it goes into."""

from collections.abc import Iterator

from tidemill.errors import DeclarationError
from tidemill.lots.checks import drops, strict
from tidemill.lots.datasets import Dataset
from tidemill.pipeline.declarations import SourceDecl
from tidemill.pipeline.incoming import converter, growing, settled_push
from tidemill.pipeline.plan.catalog import Catalog
from tidemill.pipeline.plan.stages import DeclareSource
from tidemill.pipeline.source_line import at
from tidemill.pipeline.writes import spelled
from tidemill.runner.program import SourceProgram, StreamProgram
from tidemill.sources.bucket import BucketSpec
from tidemill.sources.declarations import SourceSpec, source_id
from tidemill.sources.folder import FolderSpec
from tidemill.sources.kafka import KafkaSpec
from tidemill.sources.polling import PollSpec
from tidemill.sources.pushing import PushSpec


class SourcePlanner:
    """Plans the sources of a pipeline."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.pipeline = catalog.pipeline

    def plan(self) -> Iterator[SourceProgram | StreamProgram]:
        for decl in self.pipeline.sources.values():
            with at(decl.line):
                known = self.catalog.known[decl.dataset].dataset
                assert known is not None
                self.catalog.expected(known, decl.checks)
                if known.unit is not None:
                    raise DeclarationError(
                        f"{decl.dataset} has intervals, and a source makes a lot of what it finds",
                        hint="leave lots= out for a dataset that has a source",
                    )
                if isinstance(decl.spec, PushSpec):
                    if drops((*decl.checks, *self.pipeline.datasets[decl.dataset].expected)):
                        self.catalog.quarantine(known.id, None, decl.line, f"checks of {known.name}")
                    yield self._pushed(decl, decl.spec, known)
                elif isinstance(decl.spec, PollSpec | KafkaSpec):
                    yield self._drawn(decl, decl.spec, known)
                else:
                    yield self._files(decl, decl.spec.below(self.pipeline.base), known)

    def _files(self, decl: SourceDecl, place: FolderSpec | BucketSpec, known: Dataset) -> SourceProgram:
        spec = SourceSpec(
            id=source_id(self.pipeline.name, decl.dataset),
            pipeline=self.pipeline.name,
            dataset=known.id,
            schema=spelled(self.pipeline.datasets[decl.dataset].dataset).schema,
            kind=known.kind,
            key=known.key,
            drift=known.drift,
            reading=place.reading,
            policy=place.policy,
            quarantine=self.catalog.quarantine(known.id, None, decl.line, f"source of {decl.dataset}"),
            checks=decl.checks,
        )
        detail = f"{spec.reading.format.value} files in {place.root}"
        self.catalog.stages.append(DeclareSource(dataset=known.id, detail=detail, where=str(decl.line)))
        return SourceProgram(spec=spec, place=place, where=str(decl.line))

    def _pushed(self, decl: SourceDecl, spec: PushSpec, known: Dataset) -> StreamProgram:
        place = settled_push(self.pipeline, decl.dataset, spec)
        self.catalog.stages.append(DeclareSource(dataset=known.id, detail=place.shown, where=str(decl.line)))
        return StreamProgram(
            id=source_id(self.pipeline.name, decl.dataset),
            dataset=known,
            place=place,
            convert=converter(known),
            where=str(decl.line),
            checks=strict(decl.checks),
            growing=growing(known),
        )

    def _drawn(self, decl: SourceDecl, spec: PollSpec | KafkaSpec, known: Dataset) -> StreamProgram:
        self.catalog.stages.append(DeclareSource(dataset=known.id, detail=spec.shown, where=str(decl.line)))
        return StreamProgram(
            id=source_id(self.pipeline.name, decl.dataset),
            dataset=known,
            place=spec,
            convert=converter(known),
            where=str(decl.line),
            quarantine=self.catalog.quarantine(known.id, None, decl.line, f"source of {decl.dataset}"),
            checks=decl.checks,
            growing=growing(known),
        )
