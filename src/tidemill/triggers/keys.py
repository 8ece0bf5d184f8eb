"""Keys of triggers in the store. All of them begin with the cluster's name, C.

(C, "subscription", id)                  the row of a subscription
(C, "subscription-floor", id)            the last epoch of a deleted subscription
(C, "due", at, id)                       scheduled subscriptions by the time of the next check or start
(C, "owed", id)                          the epoch and time of an item that may not be on the heap yet
(C, "unready", at, id)                   subscriptions that are not ready, by the time `attach` began
(C, "subscriber", name, version, id)     the subscribers of a dataset
(C, "wake", name, version)               wake row: new data that was not announced to subscribers yet
(C, "waking", name, version)             cursor: the last template or subscriber handled; templates first
(C, "wake-round")                        the dataset at which the last round of waking ended
(C, "wake-bell")                         no row; watchers of this key are notified of wake rows
(C, "template", id)                      a template
(C, "templating", id)                    cursor: the last dataset that the template was instantiated for
(C, "heap-form")                         the heap of the cluster, for all runners to use
(C, "heap-rebuild")                      cursor: the last subscription whose item was pushed again
(C, "heap", at, id, epoch)               the items of a heap in the store
(C, "cron", id)                          a schedule
(C, "cron-due", wall, id)                schedules by their next time
(C, "alarm", name, version)              the time of an input's alarm
(C, "alarm-due", wall, name, version)    alarms by their time
"""

from tidemill.store import Space


class TriggerKeys:
    """The key spaces of one cluster's triggers."""

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
