"""Keys of runners in the store. All of them begin with the cluster's name, C.

(C, "part-future", attempt, key)     the future that makes a part -> its id
"""

from tidemill.store import Space


class RunnerKeys:
    """The spaces of one cluster's runners."""

    def __init__(self, cluster: str) -> None:
        self.part = Space(cluster, "part-future")
