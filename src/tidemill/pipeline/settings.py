"""The settings of a pipeline that decide where it runs: each value and its origin.

The user's file declares them (`tm.Pipeline(…)`). A profile in `tidemill.toml` overrides them, so that the
same file runs in development and in production:

    [profiles.prod]
    store = "env:SHOP_STORE"
    objects = "s3://shop/prod"
    spark = "spark://master:7077"

`tidemill --profile prod …` or the environment variable `TIDEMILL_PROFILE` chooses the profile.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from tidemill.errors import UsageError
from tidemill.futures.home import CLUSTER, ClusterAddress
from tidemill.objects.url import redact as redact_objects
from tidemill.paths import expanded
from tidemill.store.secret_references import is_reference
from tidemill.store.secrets import redact as redact_store

DEFAULT, DECLARED = "default", "tm.Pipeline(…)"


@dataclass(frozen=True, kw_only=True)
class PipelineLocation:
    """Where a pipeline keeps everything: a home, or a store with its objects.

    - origins: where each value was set; a value that is not listed has its default.
    """

    home: str | None = None
    store: str | None = None
    objects: str | None = None
    cluster: str = CLUSTER
    key_file: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)

    def address(self) -> ClusterAddress:
        """Return the address; raise `UsageError` if the values do not fit together."""
        return ClusterAddress.of(
            home=self.home,
            store=self.store,
            objects=self.objects,
            cluster=self.cluster,
            key_file=self.key_file,
        )

    def overridden(self, values: Mapping[str, str], origin: str, base: Path) -> "PipelineLocation":
        """Return the location with other values. A home replaces a store, and a store replaces a home.

        - base: the folder that relative paths are relative to.
        """
        known = {name: value for name, value in values.items() if name in SETTINGS}
        changed = dict(known)
        for name in ("home", "key_file"):
            if name in changed:
                changed[name] = str(base / expanded(changed[name]))
        location = replace(self, **changed, origins={**self.origins, **dict.fromkeys(known, origin)})
        if "home" in known and "store" not in known:
            return replace(location, store=None, objects=None)
        return replace(location, home=None) if "store" in known else location


SETTINGS = frozenset(each.name for each in fields(PipelineLocation)) - {"origins"}
SPARK = "spark"
PROFILE_SETTINGS = SETTINGS | {SPARK}


@dataclass(frozen=True)
class Setting:
    """A setting: its value without secrets, and where it was set."""

    name: str
    value: str
    origin: str


def shown(location: PipelineLocation, spark: object, spark_origin: str) -> list[Setting]:
    """Return the settings of a location and of Spark, for people. Secrets are redacted."""
    settings = []
    for name in ("home", "store", "objects", "cluster", "key_file"):
        value = getattr(location, name)
        if value is not None:
            settings.append(Setting(name, _redacted(name, value), location.origins.get(name, DEFAULT)))
    described = spark if isinstance(spark, str) else type(spark).__name__ if spark is not None else "local[*]"
    return [*settings, Setting(SPARK, str(described), spark_origin)]


def _redacted(name: str, value: str) -> str:
    if is_reference(value):
        return value
    return redact_store(value) if name == "store" else redact_objects(value) if name == "objects" else value


def environment() -> list[Setting]:
    """Return the environment variables that Tidemill reads and that are set. Secrets are hidden."""
    return [
        Setting(name, "***" if name in SECRET_VARIABLES else os.environ[name], "environment")
        for name in VARIABLES
        if os.environ.get(name)
    ]


VARIABLES = (
    "TIDEMILL_PROFILE",
    "TIDEMILL_CLUSTER_KEY",
    "TIDEMILL_CLUSTER_KEY_FILE",
    "TIDEMILL_PUSH_TOKEN",
    "TIDEMILL_CACHE",
    "TIDEMILL_CLASS_ARCHIVE",
    "TIDEMILL_JAVA",
    "TIDEMILL_PLACE",
    "TIDEMILL_DEBUG",
    "OPENLINEAGE_API_KEY",
)
SECRET_VARIABLES = frozenset({"TIDEMILL_CLUSTER_KEY", "TIDEMILL_PUSH_TOKEN", "OPENLINEAGE_API_KEY"})


def check_profile(name: str, values: Mapping[str, object], where: str) -> dict[str, str]:
    """Return the values of a profile; raise `UsageError` for unknown settings and other types."""
    unknown = sorted(values.keys() - PROFILE_SETTINGS)
    if unknown:
        raise UsageError(
            f"{where}: the profile {name} has an unknown setting `{unknown[0]}`",
            hint=f"use {', '.join(sorted(PROFILE_SETTINGS))}",
        )
    checked = {}
    for setting, value in values.items():
        if not isinstance(value, str):
            raise UsageError(
                f"{where}: `{setting}` of the profile {name} is not a text", hint='write it in quotes: "…"'
            )
        checked[setting] = value
    if {"home", "store"} <= checked.keys():
        raise UsageError(f"{where}: the profile {name} has a home and a store", hint="omit one of them")
    return checked
