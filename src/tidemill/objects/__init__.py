"""Object storage: one interface for files, memory, S3, Google Cloud Storage and Azure."""

from tidemill.objects.open import (
    Probed,
    open_objects,
    open_place,
    place_of,
    probe_bucket,
    try_conditions,
)
from tidemill.objects.port import Body, ObjectInfo, Objects, Put

__all__ = [
    "Body",
    "ObjectInfo",
    "Objects",
    "Probed",
    "Put",
    "open_objects",
    "open_place",
    "place_of",
    "probe_bucket",
    "try_conditions",
]
