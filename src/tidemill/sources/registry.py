"""List the kinds of source, one line for each.

Each kind has a function that declares a source, and `tidemill` exports these functions. A module is imported
when its function is first used. So a pipeline does not load the dependencies of a source that it does not
use.
"""

from typing import Final

SOURCES: Final = {
    "bucket": "tidemill.sources.bucket",
    "folder": "tidemill.sources.folder",
    "http_poll": "tidemill.sources.http_poll",
    "http_push": "tidemill.sources.http_push",
    "kafka": "tidemill.sources.kafka",
}
"""The name of each function that declares a source, and the module that defines the function."""
