"""The steps room's layout in the store, beside that of the rooms a step's commit writes to.

(C, "circuit", P)                          the circuit's version, as it was declared last
(C, "step-last", P)                        the number of the newest record, and where the next one looks first
(C, "step-record", P, n)                   record n: which input belongs to step n
(C, "step-base", P, name, version)         up to which position a base dataset is assigned to steps
(C, "step-range", P, name, version, n)     the same as of step n, where it moved: positions at any step
(C, "group", P, group)                     a group: what it consists of, and the step it has committed
(C, "group-step", P, group, n)             what its commit of step n published
(C, "retired", P, view)                    where the table of a view was that nobody declares any more
(C, "group-gone", P, view, group)          a view, or else a group, that is declared no more: to be collected
(C, "pin", P, name)                        until when what a manifest or a version file lists is kept
(C, "lease", "coordinator", P)             the coordinator's epoch
"""

from tidemill.lots import layout
from tidemill.lots.keys import DatasetId
from tidemill.publish.keys import PublishKeys
from tidemill.store import Space


class StepKeys(PublishKeys):
    """The spaces of one cluster's steps."""

    def __init__(self, cluster: str) -> None:
        super().__init__(cluster)
        self.circuit = Space(cluster, "circuit")
        self.last = Space(cluster, "step-last")
        self.record = Space(cluster, "step-record")
        self.base = Space(cluster, "step-base")
        self.range = Space(cluster, "step-range")
        self.group = Space(cluster, "group")
        self.step = Space(cluster, "group-step")
        self.gone = Space(cluster, "group-gone")
        self.pin = Space(cluster, "pin")
        self.retired = Space(cluster, "retired")

    def office(self, pipeline: str) -> bytes:
        """The coordinator's lease."""
        return self.cluster.lease["coordinator", pipeline]


def step_log(pipeline: str) -> DatasetId:
    """A pipeline's step log as a source of subscriptions; its head is the newest record's number."""
    return DatasetId(f"steps:{pipeline}")


def group_source(pipeline: str, group: str) -> DatasetId:
    """A group as a source of subscriptions; its head is the step it has committed."""
    return DatasetId(group_id(pipeline, group))


def group_id(pipeline: str, group: str) -> str:
    """The name of a group's subscription, and the author of its attempts."""
    return f"views:{pipeline}/{group}"


def changes_of(pipeline: str, view: str) -> DatasetId:
    """What a view's changes lie under, step by step."""
    return DatasetId(_view(pipeline, view), "changes")


def table_of(pipeline: str, view: str) -> DatasetId:
    """What a view's table lies under: merged files, and the lists of what makes up the table at a step."""
    return DatasetId(_view(pipeline, view), "table")


def quarantine_of(pipeline: str, group: str) -> DatasetId:
    """What a group's steps set aside lies under: rows deleted where they are not (DBSP-21)."""
    return DatasetId(group_id(pipeline, group), "quarantine")


def state_of(pipeline: str, group: str) -> DatasetId:
    """What a group's state lies under: bundles of runs, and the version files that list them."""
    return DatasetId(group_id(pipeline, group), "state")


def state_prefix(pipeline: str, group: str, lot: str, attempt: str) -> str:
    """The folder that one attempt at a step writes its state into, and nobody else."""
    return layout.data_prefix(*state_of(pipeline, group).parts, lot, attempt)


def alarm_of(pipeline: str, group: str) -> DatasetId:
    """A group's alarm as an input of its steps: its head moves when a view changes by time alone."""
    return DatasetId(group_id(pipeline, group), "alarm")


def _view(pipeline: str, view: str) -> str:
    name = f"view:{pipeline}/{view}"
    layout.quote(name)  # BadName: one that no key could carry
    return name


def step_lot(number: int) -> str:
    """The lot id of a step's output: it sorts as steps do."""
    return f"S{number:017}"


def step_of(lot: str) -> int:
    """The step whose output has this lot id."""
    return int(lot[1:])
