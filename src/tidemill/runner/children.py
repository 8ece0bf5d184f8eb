"""Children: arcs that come to be while a program runs, of a template and a dataset that is new (HEAP-12).

A template's subscriptions are made by whoever tends, of any pipeline and any code. What such a child runs is
known to those alone that have the template's function: they make the arc when they first meet its name, in a
run that is due or in a part that somebody else has listed. Making one declares its tables; it may be
repeated, and by several runners at once, because equal declarations are no-ops.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.lots.datasets import Dataset
from tidemill.lots.keys import DatasetId

if TYPE_CHECKING:
    from tidemill.runner.program import ArcProgram


@dataclass(frozen=True)
class Child:
    """An arc that was made, and the datasets it reads and writes."""

    arc: "ArcProgram"
    datasets: Mapping[DatasetId, Dataset] = field(default_factory=dict)


Make = Callable[[str], Child | None]
"""Makes the child of this id; None when there is no such dataset. Raises what is wrong with it."""


class Children:
    """The children of one program. Several threads may ask at once; each is made once.

    Args:
        templates: the ids of the templates.
        make: makes one.
    """

    def __init__(self, templates: frozenset[str] = frozenset(), make: Make = lambda _: None) -> None:
        self.templates = templates
        self._make = make
        self._lock = threading.Lock()
        self._made: Mapping[str, Child] = {}

    def template_of(self, arc: str) -> str | None:
        """The template that an arc of this id would be a child of, by its name alone."""
        template, bracket, _ = arc.partition("[")
        return template if bracket and arc.endswith("]") and template in self.templates else None

    @property
    def arcs(self) -> dict[str, "ArcProgram"]:
        """Those that were made so far."""
        return {name: child.arc for name, child in self._made.items()}

    @property
    def datasets(self) -> dict[DatasetId, Dataset]:
        """What those that were made so far read and write."""
        return {id_: one for child in self._made.values() for id_, one in child.datasets.items()}

    def find(self, arc: str) -> "ArcProgram | None":
        """The arc of this id, made if it has to be; None for what is no child of ours."""
        found = self._made.get(arc)
        if found is not None:
            return found.arc
        if self.template_of(arc) is None:
            return None
        with self._lock:
            found = self._made.get(arc) or self._make(arc)
            if found is None:
                return None
            self._made = {**self._made, arc: found}  # not in place: others may be reading it
        return found.arc
