"""The reference of the configuration: settings of a pipeline, options of files, environment variables."""

import inspect
import re
from pathlib import Path

import tidemill as tm
from tests.site.markdown import described, table
from tidemill.pipeline.settings import PROFILE_SETTINGS
from tidemill.sources.file_source import FilePolicy
from tidemill.spark.ingest.formats import FormatOptions
from tidemill.spark.sessions import PINNED

OPENING = """# Configuration

Four places set how a pipeline runs. A later one overrides an earlier one: the declaration in Python
(`tm.Pipeline(…)`), a profile in `tidemill.toml`, environment variables, options of the command line.
`tidemill config` shows each value and where it was set. Wherever a value may be a secret, write `env:NAME` or
`file:PATH` instead ([how](../howto/project.md#settings-for-development-and-production)).

## tidemill.toml

`tidemill` looks for `tidemill.toml`, or `[tool.tidemill]` in `pyproject.toml`, in this folder and above.

```toml
pipeline = "shop.py:shop"           # the file and the variable of the pipeline

[profiles.prod]                     # tidemill --profile prod, or TIDEMILL_PROFILE=prod
store = "env:SHOP_STORE"
objects = "s3://shop/prod"
spark = "spark://master:7077"
```
"""

VARIABLES = {
    "TIDEMILL_PROFILE": "the profile of `tidemill.toml` to use",
    "TIDEMILL_STORE": "the URL of the store for `tidemill worker`",
    "TIDEMILL_OBJECTS": "the URL of the object storage for `tidemill worker`",
    "TIDEMILL_CLUSTER_KEY": "the cluster key as text; workers verify with it that code is signed",
    "TIDEMILL_CLUSTER_KEY_FILE": "a file with the cluster key",
    "TIDEMILL_PUSH_TOKEN": "the token that senders of `http_push` must send",
    "TIDEMILL_CLASS_ARCHIVE": "the folder for the archive of Spark's classes, or `off` to use none",
    "TIDEMILL_CACHE": "the folder in which steps keep copies of state, or `off` to keep none",
    "TIDEMILL_PLACE": "where steps of views run: `runner` or `spark`; by default, their size decides",
    "TIDEMILL_DEBUG": "`1` prints the stack trace of an unexpected error",
}
"""The environment variables that users may set."""

INTERNAL = {
    "TIDEMILL_COMPLETE",
    "TIDEMILL_CRASH",
    "TIDEMILL_JAVA",
    "TIDEMILL_OBJECTS_URL",
    "TIDEMILL_TOO_MANY_BYTES",
    "TIDEMILL_TOO_MANY_ROWS",
}
"""Names that Tidemill sets for its own processes, that only tests use, or that are no variables."""


def used_variables(source: Path) -> set[str]:
    """Return the environment variables that the code names."""
    texts = (file.read_text(encoding="utf-8") for file in [*source.rglob("*.py"), *source.rglob("java")])
    return {name for text in texts for name in re.findall(r"[\"'$](TIDEMILL_[A-Z_]*[A-Z])\b", text)}


def page() -> str:
    """Return the page."""
    pipeline = inspect.signature(tm.Pipeline.__init__).parameters
    settings = ", ".join(f"`{name}`" for name in sorted(PROFILE_SETTINGS))
    return "\n".join(
        [
            OPENING,
            f"A profile may set {settings}.",
            "",
            "## tm.Pipeline",
            "",
            described(tm.Pipeline),
            "",
            table(
                ("argument", "default"),
                [
                    (f"`{name}`", "required" if each.default is each.empty else f"`{each.default!r}`")
                    for name, each in pipeline.items()
                    if name not in ("self", "clock", "chance")
                ],
            ),
            "",
            "## Spark",
            "",
            described(tm.SparkSettings),
            "",
            "These settings of Spark decide results. Tidemill always uses the same values:",
            "",
            table(("setting", "value"), [(f"`{name}`", f"`{value}`") for name, value in PINNED.items()]),
            "",
            "## Options of file formats",
            "",
            described(FormatOptions),
            "",
            "## Options of folders and buckets",
            "",
            described(FilePolicy),
            "",
            "## Environment variables",
            "",
            table(("variable", "meaning"), [(f"`{name}`", text) for name, text in VARIABLES.items()]),
            "",
        ]
    )
