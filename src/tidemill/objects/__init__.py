"""Object storage: one port; files, memory, S3, Google Cloud Storage and Azure behind it."""

from tidemill.objects.open import open_objects, open_place, place_of, probe_bucket
from tidemill.objects.port import Body, Info, Objects, Put
from tidemill.objects.probe import Probed, try_conditions

__all__ = [
    "Body",
    "Info",
    "Objects",
    "Probed",
    "Put",
    "open_objects",
    "open_place",
    "place_of",
    "probe_bucket",
    "try_conditions",
]
