"""Events about what leaves a process to be observed."""

from tidemill.events import Event


class TracesUnsent(Event, frozen=True):
    """Traces are switched on by an environment variable, but cannot be sent."""

    error: str
