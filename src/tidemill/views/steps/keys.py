"""The keys of steps in the store. The commit of a step also writes keys of publications, not listed here.

(C, "circuit", P)                          the version of the circuit that was declared last
(C, "step-last", P)                        the number of the newest record, and the progress of the next one
(C, "step-record", P, n)                   record n: which input belongs to step n
(C, "step-base", P, name, version)         the last position of a base dataset that is assigned to a step
(C, "step-range", P, name, version, n)     this position at step n, if step n changed it
(C, "group", P, group)                     a group: its declaration, and the step it has committed
(C, "group-step", P, group, n)             what the group published when it committed step n
(C, "retired", P, view)                    the last table of a view that is no longer declared
(C, "whole-reads", P, group)               the datasets that the group reads as a whole in each step
(C, "failed-view", P, group, view)         a view that is set aside, because it fails on its input
(C, "checked-view", P, group, view)        how many rows of a view fail its checks
(C, "group-gone", P, view, group)          a view or group that is no longer declared; its files can go
(C, "planned", P, view)                    what planning found out about a view's query
(C, "analyses", P)                         what Spark's analysis answered, for the next process
(C, "stepper", P, group)                   the state of a group's stepper in a round
(C, "version", P, group, number)           a version of a group: a head that a round has pinned
(C, "shadow", P, group)                    a shadow: a copy of the group's state that repeats its steps
(C, "diverged", P, group)                  a step of the group, computed again, has other rows
(C, "ranges", P)                           how many ranges a step has at least
(C, "step-limit", P)                       how much input a step takes at most
(C, "pin", P, name)                        until when to keep the files that a manifest or version file lists
(C, "lease", "coordinator", P)             the coordinator lease and its epoch
"""

from tidemill.lots import layout
from tidemill.lots.keys import DatasetId
from tidemill.publish.keys import PublishKeys
from tidemill.store import Space


class StepKeys(PublishKeys):
    """The key spaces of one cluster's steps."""

    def __init__(self, cluster: str) -> None:
        super().__init__(cluster)
        self.circuit = Space(cluster, "circuit")
        self.last = Space(cluster, "step-last")
        self.record = Space(cluster, "step-record")
        self.base = Space(cluster, "step-base")
        self.range = Space(cluster, "step-range")
        self.group = Space(cluster, "group")
        self.step = Space(cluster, "group-step")
        self.whole = Space(cluster, "whole-reads")
        self.failed = Space(cluster, "failed-view")
        self.checked = Space(cluster, "checked-view")
        self.gone = Space(cluster, "group-gone")
        self.stepper = Space(cluster, "stepper")
        self.version = Space(cluster, "version")
        self.shadow = Space(cluster, "shadow")
        self.diverged = Space(cluster, "diverged")
        self.ranges = Space(cluster, "ranges")
        self.limit = Space(cluster, "step-limit")
        self.pin = Space(cluster, "pin")
        self.planned = Space(cluster, "planned")
        self.analyses = Space(cluster, "analyses")
        self.retired = Space(cluster, "retired")

    def coordinator_lease(self, pipeline: str) -> bytes:
        """The key of the coordinator's lease."""
        return self.cluster.lease["coordinator", pipeline]


def step_log(pipeline: str) -> DatasetId:
    """Return a pipeline's step log as an input of subscriptions; its head is the newest record's number."""
    return DatasetId(f"steps:{pipeline}")


def group_source(pipeline: str, group: str) -> DatasetId:
    """Return a group as an input of subscriptions; its head is the step it has committed."""
    return DatasetId(group_id(pipeline, group))


def group_id(pipeline: str, group: str) -> str:
    """Return the name of a group's subscription, which is also the author of its attempts."""
    return f"views:{pipeline}/{group}"


def changes_of(pipeline: str, view: str) -> DatasetId:
    """Return the dataset id of a view's changes; each step is one lot."""
    return DatasetId(_view(pipeline, view), "changes")


def table_of(pipeline: str, view: str) -> DatasetId:
    """Return the dataset id of a view's table: merged files, and the manifests that list its files."""
    return DatasetId(_view(pipeline, view), "table")


def quarantine_of(pipeline: str, group: str) -> DatasetId:
    """Return the dataset id of a group's quarantine: deletions of rows that do not exist (DBSP-21)."""
    return DatasetId(group_id(pipeline, group), "quarantine")


def state_of(pipeline: str, group: str) -> DatasetId:
    """Return the dataset id of a group's state: bundles of runs, and the version files that list them."""
    return DatasetId(group_id(pipeline, group), "state")


def state_prefix(pipeline: str, group: str, lot: str, attempt: str) -> str:
    """Return the folder for the state of one attempt at a step; no other attempt writes there."""
    return layout.data_prefix(*state_of(pipeline, group).parts, lot, attempt)


def alarm_of(pipeline: str, group: str) -> DatasetId:
    """Return a group's alarm as an input of its steps; its head moves when time alone changes a view."""
    return DatasetId(group_id(pipeline, group), "alarm")


def _view(pipeline: str, view: str) -> str:
    name = f"view:{pipeline}/{view}"
    layout.quote(name)  # raises BadName if the name cannot be part of a key
    return name


def step_lot(number: int) -> str:
    """Return the lot id of a step's output; lot ids sort like steps."""
    return f"S{number:017}"


def step_of(lot: str) -> int:
    """Return the step of a lot id."""
    return int(lot[1:])
