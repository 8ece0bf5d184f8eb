import importlib
from enum import StrEnum
from pathlib import Path
from types import ModuleType

import pytest

import tidemill
from tests import errors_page, states_page

ROOMS = sorted(path.parent.name for path in Path(tidemill.__file__).parent.glob("*/states.py"))


@pytest.mark.parametrize("module", [errors_page, states_page], ids=lambda module: module.__name__)
def test_a_generated_page_is_current(module: ModuleType) -> None:
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "make docs"


def test_every_error_has_a_meaning_in_the_tree() -> None:
    from tidemill.errors import Stop, TidemillError

    every = [kind.__name__ for top in (TidemillError, Stop) for kind in errors_page.below(top)]
    assert sorted(errors_page.meanings()) == sorted(every)


@pytest.mark.parametrize("room", ROOMS)
def test_every_machine_of_a_room_is_drawn(room: str) -> None:
    def is_table(value: object) -> bool:
        return (
            isinstance(value, dict)
            and bool(value)
            and all(isinstance(state, StrEnum) and isinstance(edges, dict) for state, edges in value.items())
        )

    tables = [
        each for each in vars(importlib.import_module(f"tidemill.{room}.states")).values() if is_table(each)
    ]
    drawn = [machine.table for machine in states_page.MACHINES if machine.room == room]
    assert [table for table in tables if not any(table is one for one in drawn)] == []


def test_a_diagram_has_an_arrow_for_every_edge() -> None:
    for machine in states_page.MACHINES:
        text = states_page.diagram(machine)
        for state, edges in machine.table.items():
            for edge, after in edges.items():
                start = f"    {states_page.name(state)} --> {states_page.name(after)}: "
                labels = [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]
                assert len(labels) == 1, (machine.name, state, after)
                assert edge.value in labels[0].split(", ")
