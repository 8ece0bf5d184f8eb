"""What a version file of a group's state lists, for a cleaner: bundles that it does not list are left over.

A task that was repeated, or whose twin was faster, leaves a bundle that no version lists; a merge that came
too late leaves one as well (DBSP-37).
"""

from collections.abc import Collection

from tidemill.errors import ManifestUnreadable, ObjectMissing, TraceError, TraceMissing
from tidemill.lots import layout
from tidemill.objects.port import Objects
from tidemill.views.trace.version import read_version


def listed(objects: Objects, key: str) -> Collection[str] | None:
    """The run files that a version file lists; None for what is none, by its name.

    `ObjectMissing` when it is not there any more, `ManifestUnreadable` when it cannot be read.
    """
    named = layout.parse_key(key)
    if named["kind"] != "data" or named.get("version") != "state":
        return None
    try:
        return read_version(objects, key).files()
    except TraceMissing as error:
        raise ObjectMissing(error.message) from error
    except TraceError as error:
        raise ManifestUnreadable(error.message) from error
