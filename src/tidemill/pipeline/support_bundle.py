"""Collect what helps to find the cause of a problem, in one archive without secrets.

The archive has texts only: versions, settings, the state of all tables and runs, the event log, nodes, failed
futures and queries of views. It has no rows of tables, but messages may quote values of a row that failed.

Known secrets are removed from every text: the cluster key, passwords and tokens in URLs, and the values of
environment variables whose names say that they are secret. If a known secret is left in a text, nothing is
written.
"""

import base64
import os
import platform
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import metadata
from io import BytesIO
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill import __version__
from tidemill.cluster import node_list
from tidemill.cluster.keys import ClusterKeys
from tidemill.errors import TidemillError, UsageError, describe
from tidemill.futures.client import queries
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.obs.event_log import EventFilter
from tidemill.pipeline import gaps, observing
from tidemill.pipeline.reader import failed
from tidemill.pipeline.settings import environment
from tidemill.pipeline.status import status_of
from tidemill.store.secrets import Scrubber, names_secret, redact_text

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

MOST_EVENTS = 5_000
MOST_FUTURES = 100
SHORTEST_SECRET = 6
"""Shorter values of environment variables are not secrets: removing them would damage every text."""

PACKAGES = ("pyspark", "pyarrow", "numpy", "sqlglot", "msgspec", "obstore", "psycopg", "openlineage-python")


def write_bundle(pipeline: "Pipeline", target: BytesIO) -> dict[str, int]:
    """Write the archive; return its files with their sizes."""
    secrets = set(_secrets(pipeline))
    scrub = Scrubber(*_urls(pipeline), secrets=secrets)
    sizes = {}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, collect in _files(pipeline).items():
            text = redact_text(scrub(_text(collect)))
            if any(secret in text for secret in secrets):
                raise UsageError(
                    f"the file {name} of the bundle would contain a secret, so nothing is written",
                    hint="report this, and send the output of `tidemill status --json`",
                )
            archive.writestr(name, text)
            sizes[name] = len(text)
    return sizes


def _files(pipeline: "Pipeline") -> Mapping[str, Callable[[], Any]]:
    context = pipeline.context
    keys = FutureKeys(context.place.cluster)
    return {
        "about.json": _about,
        "settings.json": lambda: [*pipeline.settings, *environment()],
        "status.json": lambda: status_of(pipeline),
        "gaps.txt": lambda: str(gaps.gaps_of(pipeline)),
        "failed_views.json": lambda: failed(pipeline),
        "declarations.json": lambda: _declarations(pipeline),
        "events.jsonl": lambda: "".join(
            msgspec.json.encode(row.event).decode() + "\n"
            for row in observing.log_rows(pipeline, EventFilter(), MOST_EVENTS)
        ),
        "nodes.json": lambda: context.store.run(
            partial(node_list.read, keys=ClusterKeys(context.place.cluster))
        ),
        "futures.json": lambda: queries.count_states(context.store, keys, MOST_FUTURES),
    }


def _text(collect: Callable[[], Any]) -> str:
    """Return the content of a file. If it cannot be collected, the file says why."""
    try:
        content = collect()
    except TidemillError as error:
        return f"cannot be collected: {describe(error)}\n"
    if isinstance(content, str):
        return content
    return msgspec.json.format(msgspec.json.encode(content, enc_hook=str), indent=2).decode() + "\n"


def _about() -> dict[str, Any]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "tidemill": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "packages": versions,
    }


def _declarations(pipeline: "Pipeline") -> dict[str, Any]:
    return {
        "datasets": {name: decl.schema for name, decl in pipeline.datasets.items()},
        "sources": {name: type(decl.source).__name__ for name, decl in pipeline.sources.items()},
        "arcs": {
            name: {"reads": arc.reads, "writes": [sink.name for sink in arc.sinks]}
            for name, arc in pipeline.all_arcs().items()
        },
        "views": {name: decl.sql or "a function" for name, decl in pipeline.views.items()},
    }


def _urls(pipeline: "Pipeline") -> list[str]:
    place = pipeline.context.place
    return [url for url in (place.store, place.objects) if url]


def _secrets(pipeline: "Pipeline") -> Iterator[str]:
    """Yield the secrets that this process knows."""
    key = pipeline.context.place.key.secret
    yield from (key.hex(), base64.b64encode(key).decode(), base64.urlsafe_b64encode(key).decode())
    for name, value in os.environ.items():
        if names_secret(name) and len(value) >= SHORTEST_SECRET and not value.startswith("/"):
            yield value
