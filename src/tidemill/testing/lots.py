"""Lots for tests of a pipeline: write them as appends or files, and look at what became of them."""

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.errors import NothingYet, UsageError
from tidemill.pipeline.lot_info import LotInfo, lots_of
from tidemill.pipeline.tables import Dataset

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

Record = Mapping[str, Any]


class Lots:
    """The lots of the pipeline under test."""

    def __init__(self, pipeline: "Pipeline") -> None:
        self._pipeline = pipeline

    def append(self, dataset: str, *lots: Sequence[Record] | Sequence[Sequence[Any]]) -> list[str]:
        """Append each list of rows as one lot; return the ids of the lots."""
        table = self._pipeline[dataset]
        if not isinstance(table, Dataset):
            raise UsageError(
                f"{dataset} is not a dataset", hint="append to a dataset that it is computed from"
            )
        return [table.append(list(rows)).lot for rows in lots]

    def land(self, path: str, records: Sequence[Record]) -> Path:
        """Write a file for a source: JSON lines, or CSV with a header if its name ends with `.csv`.

        - path: relative to the folder of the test, like the folders of the pipeline's sources.
        """
        file = self._pipeline.base / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".csv":
            with file.open("w", newline="") as text:
                writer = csv.DictWriter(text, list(records[0]) if records else [])
                writer.writeheader()
                writer.writerows(records)
        else:
            file.write_text("".join(json.dumps(record, default=str) + "\n" for record in records))
        return file

    def of(self, table: str) -> list[LotInfo]:
        """Return the lots of a table, in order."""
        return lots_of(self._pipeline, table)

    def counts(self, table: str) -> dict[str, int]:
        """Return how many lots of a table are in each state."""
        return dict(Counter(lot.state for lot in self.of(table)))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        """Return the rows of a table, in an order that does not depend on how they are stored."""
        try:
            frame = self._pipeline[table].df()
        except NothingYet:
            return []
        return sorted((tuple(row) for row in frame.collect()), key=repr)

    def problems(self) -> list[str]:
        """Return the lots that are not complete, each with the reason."""
        return [
            f"{name}, lot {lot.lot}: {lot.state}{': ' if lot.note else ''}{lot.note}"
            for name in self._pipeline.names
            for lot in self.of(name)
            if lot.state not in ("complete", "empty", "removed")
        ]
