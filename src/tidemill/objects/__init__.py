"""Object storage: one port for files, memory, S3, Google Cloud Storage and Azure."""

from tidemill.objects.bucket_probe import Probed, try_conditions
from tidemill.objects.open import open_objects, open_place, place_of, probe_bucket
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
