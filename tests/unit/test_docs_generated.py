from types import ModuleType

import pytest

from tests import errors_page, heap_page, manifest_page, states_page, types_page
from tidemill.errors import Stop, TidemillError

MACHINES = [machine for room in states_page.rooms() for machine in states_page.machines(room)]


@pytest.mark.parametrize(
    "module",
    [errors_page, heap_page, manifest_page, states_page, types_page],
    ids=lambda module: module.__name__,
)
def test_a_generated_page_is_current(module: ModuleType) -> None:
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run `make docs`"


def test_the_table_in_the_rules_of_triggers_equals_the_data() -> None:
    rules = (heap_page.PAGE.parents[1] / "rules" / "triggers.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in heap_page.rows() if line not in rules] == []


def test_every_error_has_a_meaning_in_the_tree() -> None:
    every = [kind.__name__ for top in (TidemillError, Stop) for kind in errors_page.below(top)]
    assert sorted(errors_page.meanings()) == sorted(every)


def test_the_state_machines_are_found_in_their_packages() -> None:
    assert {"Lease", "Partition", "Member", "Future", "Actor"} <= {machine.name for machine in MACHINES}


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_diagram_has_one_arrow_for_every_edge_and_a_start(machine: states_page.Machine) -> None:
    lines = states_page.diagram(machine).splitlines()
    assert len([line for line in lines if line.startswith("    [*] --> ")]) == len(machine.begins) >= 1
    for state, edges in machine.table.items():
        for edge, after in edges.items():
            start = f"    {states_page.ident(state)} --> {states_page.ident(after)}: "
            labels = [line.removeprefix(start) for line in lines if line.startswith(start)]
            assert len(labels) == 1, (state, after)
            assert edge.value in labels[0].split(", ")
