"""The layout of the cluster's rows in the store; every key begins with the cluster's name C.

(C, "config", name)                     configuration, so that any node can bootstrap the cluster (CLU-17)
(C, "lease", name)                      a named lease: the leader's, a lock's, a semaphore permit's
(C, "vacancies")                        how many times a leader resigned before its lease expired
(C, "node", id)                         one node's entry
(C, "node-expiry", expires_at, id)      nodes by expiry, so that one short range read finds the dead ones
(C, "node-version")                     a counter that grows when a node joins or leaves (CLU-16)
(C, "part", group, id)                  a partition
(C, "part-expiry", group, expires_at, id)   partitions by expiry: one read returns all of them (CLU-14)
(C, "part-floor", group)                the highest epoch of the partitions that were removed (CLU-7)
(C, "map", group)                       the version of the node list from which a group's partitions were made
"""

from tidemill.store import Space

LEADER = "leader"


class ClusterKeys:
    """The key spaces of one cluster."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.config = Space(cluster, "config")
        self.lease = Space(cluster, "lease")
        self.node = Space(cluster, "node")
        self.node_expiry = Space(cluster, "node-expiry")
        self.node_version = Space(cluster)["node-version"]
        self.part = Space(cluster, "part")
        self.part_expiry = Space(cluster, "part-expiry")
        self.part_floor = Space(cluster, "part-floor")
        self.map = Space(cluster, "map")
        self.leader = self.lease[LEADER]
        self.vacancies = Space(cluster)["vacancies"]
