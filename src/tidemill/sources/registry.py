"""The kinds of source: one line for each.

`tidemill` exports these functions. A module is imported when its function is first used, so that a source's
dependencies cost nothing to pipelines without one.
"""

from typing import Final

SOURCES: Final = {
    "bucket": "tidemill.sources.bucket",
    "folder": "tidemill.sources.folder",
    "http_poll": "tidemill.sources.http_poll",
    "http_push": "tidemill.sources.http_push",
    "kafka": "tidemill.sources.kafka",
}
"""The function that declares a source of a kind, and the module that defines it."""
