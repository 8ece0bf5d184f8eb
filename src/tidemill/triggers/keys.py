"""The triggers room's layout in the store: everything under the cluster's name.

(C, "subscription", id)                  its row
(C, "subscription-floor", id)            the last epoch of one that was removed
(C, "due", at, id)                       scheduled ones by the time at which somebody has to look at them
(C, "subscriber", name, version, id)     the subscribers of a dataset
(C, "wake", name, version)               something was published there since its subscribers were told
(C, "waking", name, version)             the subscriber up to which they were told
(C, "wake-round")                        the dataset at which the last round of waking ended
(C, "wake-bell")                         no row: hinted at when there is somebody to wake
"""

from tidemill.store import Space


class TriggerKeys:
    """The spaces of one cluster's subscriptions."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.subscription = Space(cluster, "subscription")
        self.floor = Space(cluster, "subscription-floor")
        self.due = Space(cluster, "due")
        self.subscriber = Space(cluster, "subscriber")
        self.wake = Space(cluster, "wake")
        self.waking = Space(cluster, "waking")
        self.round = Space(cluster)["wake-round"]
        self.bell = Space(cluster)["wake-bell"]
