"""The settings of a worker's supervisor."""

import msgspec

from tidemill.cluster.leases import DEFAULT_TIMING, LeaseTiming
from tidemill.futures.protocol.lanes import Capacity


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a supervisor. Users set `WorkerOptions` instead."""

    slots: int = 1
    total: Capacity = Capacity()
    address: str = ""  # unique among live processes: claims of earlier boots at this address are released
    timing: LeaseTiming = DEFAULT_TIMING
    grace_s: float = 30.0  # time for running tasks to finish when the worker drains
    cancel_grace_s: float = 5.0  # time for a cancelled task to stop before it is killed
    max_waiting: int = 32  # how many waiting tasks keep their process; the others restart later
