"""The reference of events: every subclass of `Event`, from its docstring and fields."""

import importlib
import pkgutil
from collections.abc import Iterator

import msgspec

import tidemill
from tests.site.markdown import described, table
from tidemill.events import Event

OPENING = """# Events

A run emits typed events. `shop.run(emit=function)` passes each of them to a function, `tidemill run
--log-json` prints them as JSON lines, and `tidemill events` and `shop.events()` read the log that runners
keep in the store ([how](../howto/alerts.md)). No decision depends on an event. The column `kind` of the log
is the name of the class.
"""


def kinds() -> list[type[Event]]:
    """Return all events of the package, sorted by module and name."""
    for module in pkgutil.walk_packages(tidemill.__path__, "tidemill."):
        if module.name.endswith(("events", "lineage", "event_log", "json_log", "hooks", "supervisor")):
            importlib.import_module(module.name)
    events = {kind for kind in _below(Event) if kind.__module__.startswith("tidemill.")}
    return sorted(events, key=lambda kind: (kind.__module__, kind.__name__))


def _below(kind: type[Event]) -> Iterator[type[Event]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _below(sub)


def page() -> str:
    """Return the page."""
    parts, room = [OPENING], ""
    for kind in kinds():
        name = kind.__module__.split(".")[1]
        if name != room:
            parts.append(f"## {name}\n")
            room = name
        fields = [(f"`{field.name}`", f"`{_shown(field.type)}`") for field in msgspec.structs.fields(kind)]
        parts += [f"### {kind.__name__}\n", described(kind), "", table(("field", "type"), fields), ""]
    return "\n".join(parts)


def _shown(kind: object) -> str:
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return text.replace("typing.", "")
