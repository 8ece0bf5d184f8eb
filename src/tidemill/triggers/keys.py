"""The triggers room's layout in the store: everything under the cluster's name.

(C, "subscription", id)                  its row
(C, "subscription-floor", id)            the last epoch of one that was removed
(C, "due", at, id)                       scheduled ones by the time at which somebody has to look at them
(C, "owed", id)                          the epoch and time of an item that may not be on the heap yet
(C, "unready", at, id)                   those whose attaching has not come to its end, by when it began
(C, "subscriber", name, version, id)     the subscribers of a dataset
(C, "wake", name, version)               something was published there since its subscribers were told
(C, "waking", name, version)             the template, then the subscriber, up to which they were told
(C, "wake-round")                        the dataset at which the last round of waking ended
(C, "wake-bell")                         no row: hinted at when there is somebody to wake
(C, "template", id)                      a template
(C, "templating", id)                    the dataset up to which it was instantiated
(C, "heap-form")                         which heap the cluster has, for its runners to agree on
(C, "heap-rebuild")                      the subscription up to which a lost heap was rebuilt
(C, "heap", at, id, epoch)               the items of a heap that lies in the store
(C, "cron", id)                          a schedule
(C, "cron-due", wall, id)                schedules by their next time
(C, "alarm", name, version)              when a source moves next though nobody writes to it
(C, "alarm-due", wall, name, version)    alarms by their time
"""

from tidemill.store import Space


class TriggerKeys:
    """The spaces of one cluster's subscriptions."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.subscription = Space(cluster, "subscription")
        self.floor = Space(cluster, "subscription-floor")
        self.due = Space(cluster, "due")
        self.owed = Space(cluster, "owed")
        self.unready = Space(cluster, "unready")
        self.subscriber = Space(cluster, "subscriber")
        self.wake = Space(cluster, "wake")
        self.waking = Space(cluster, "waking")
        self.round = Space(cluster)["wake-round"]
        self.wakeup = Space(cluster)["wake-bell"]
        self.template = Space(cluster, "template")
        self.templating = Space(cluster, "templating")
        self.heap_form = Space(cluster)["heap-form"]
        self.heap_rebuild = Space(cluster)["heap-rebuild"]
        self.heap = Space(cluster, "heap")
        self.cron = Space(cluster, "cron")
        self.cron_due = Space(cluster, "cron-due")
        self.alarm = Space(cluster, "alarm")
        self.alarm_due = Space(cluster, "alarm-due")
