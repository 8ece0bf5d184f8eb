"""Keys of runners in the store. All of them begin with the cluster's name, C.

(C, "part-future", attempt, key)     the future that makes a part -> its id
(C, "job", name)                     the nodes that poll a source or compact a lot, and how often they died
"""

from tidemill.store import Space


class RunnerKeys:
    """The keys of the runners in one cluster."""

    def __init__(self, cluster: str) -> None:
        self.part = Space(cluster, "part-future")
        self.job = Space(cluster, "job")
