"""How a worker is set up."""

import msgspec

from tidemill.cluster.leases import DEFAULT_TIMING, LeaseTiming
from tidemill.futures.protocol.lanes import Capacity


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor must know; see `WorkerOptions` for what a user says."""

    slots: int = 1
    total: Capacity = Capacity()
    address: str = ""  # where nobody else can be: what earlier boots there still hold is given back
    timing: LeaseTiming = DEFAULT_TIMING
    grace_s: float = 30.0  # for running tasks when the worker is asked to leave
    cancel_grace_s: float = 5.0  # for a task that was asked to end
    max_waiting: int = 32  # tasks that await others and keep their process meanwhile
