"""The reference of the Python API: every name of `tidemill.__all__`, from its signature and docstring."""

import inspect

import tidemill
from tests.site.markdown import described, signature

OPENING = """# Python API

Every public name of `import tidemill as tm`. Errors have [their own page](errors.md).
"""

SECTIONS = {
    "Pipelines": ("Pipeline", "Pace", "SparkSettings"),
    "Tables": ("Table", "Dataset", "View", "RetiredDataset", "RetiredView"),
    "Sources": ("folder", "bucket", "http_poll", "http_push", "kafka", "PushAddress"),
    "Checks": ("Check", "expect", "foreign_key", "not_null", "rows", "unique"),
    "Alerts": ("command", "webhook"),
    "Results": (
        "Report", "ArcReport", "Plan", "Explanation", "GapReport", "Gap", "Coverage", "LotInfo",
        "LotRequestPlan", "Receipt", "Compacted", "Event",
    ),
    "Durable futures": ("connect", "Client", "Future", "gather", "as_completed", "current_task"),
}  # fmt: skip
"""The public names in the order of a reader, without the errors."""


def page() -> str:
    """Return the page."""
    names = [name for section in SECTIONS.values() for name in section]
    errors = {name for name in tidemill.__all__ if _is_error(getattr(tidemill, name))}
    missing = set(tidemill.__all__) - set(names) - errors - {"__version__", "errors"}
    if missing:
        raise SystemExit(f"tests.site.api.SECTIONS has no place for {', '.join(sorted(missing))}")
    parts = [OPENING]
    for title, section in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_entry(name, getattr(tidemill, name)) for name in section]
    return "\n".join(parts)


def _is_error(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException)


def _entry(name: str, thing: object) -> str:
    lines = [f"### {name}\n", f"```python\n{signature(f'tm.{name}', thing)}\n```\n", described(thing), ""]
    if inspect.isclass(thing):
        for member in sorted(name for name in dir(thing) if not name.startswith("_")):
            value = inspect.getattr_static(thing, member)
            if isinstance(value, property) and value.__doc__:
                lines += [f"#### {name}.{member}\n", described(value), ""]
            elif inspect.isfunction(value) and value.__doc__:
                code = signature(f"{name.lower()}.{member}", value)
                lines += [f"#### {name}.{member}\n", f"```python\n{code}\n```\n", described(value), ""]
    return "\n".join(lines)
