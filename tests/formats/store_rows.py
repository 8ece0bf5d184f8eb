"""Every kind of row in the store, with the type that its room reads and writes it by.

`decoded` reads a row and writes it again: the bytes must be the same. So a field that got another name fails,
although a decoder would take it for a default.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.arcs import declarations, lot_requests
from tidemill.arcs import rows as arc_rows
from tidemill.arcs.keys import ArcKeys
from tidemill.cluster.keys import ClusterKeys
from tidemill.cluster.leases import Lease
from tidemill.cluster.nodes import Node
from tidemill.cluster.partitions import Partition, PartitionMap, PartitionSummary
from tidemill.futures.protocol import actors, code, inbox, limits
from tidemill.futures.protocol import rows as future_rows
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.lots import base_lot, datasets, events, expiry, lots, producers, staging, wall_clock
from tidemill.lots.keys import DatasetId, LotKeys
from tidemill.obs.alerts import OutboxRow
from tidemill.obs.declared_checks import DeclaredCheck
from tidemill.obs.event_log import LoggedEvent
from tidemill.obs.freshness import Freshness
from tidemill.obs.keys import ObservationKeys
from tidemill.pipeline.descriptions import DescriptionKeys, SourceDescription, ViewDescription
from tidemill.pipeline.plan import planned_queries
from tidemill.publish import attempts
from tidemill.publish.keys import PublishKeys
from tidemill.runner.job_deaths import NodeMark
from tidemill.runner.keys import RunnerKeys
from tidemill.sources import listing_shards, taken_files, topic_partitions, windows
from tidemill.sources.keys import SourceKeys
from tidemill.sources.listing import ListedFile
from tidemill.spark.analyses import StoredAnalyses
from tidemill.store.keys import Part, Space, Versionstamp, pack, unpack
from tidemill.store.port import read_counter, write_counter
from tidemill.triggers import schedules, subscriptions, templates
from tidemill.triggers.keys import TriggerKeys
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.steps import commits, divergence, groups, records, rounds, shadow, step_limit, versions
from tidemill.views.steps import retired as retired_views
from tidemill.views.steps.checked_views import CheckedView
from tidemill.views.steps.failed_views import FailedView
from tidemill.views.steps.keys import StepKeys

Codec = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]
Key = tuple[Part, ...]


def _packed(kind: Any) -> Codec:
    return msgspec.msgpack.Decoder(kind).decode, msgspec.msgpack.encode


def _nothing(raw: bytes) -> None:
    if raw:
        raise ValueError(f"a row without a value has {raw!r}")


def _future_id(raw: bytes) -> bytes:
    if len(raw) != 16:
        raise ValueError(f"{raw!r} is not the id of a future")
    return raw


def _is_key(raw: bytes) -> bytes:
    unpack(raw)
    return raw


EMPTY: Codec = (_nothing, lambda _: b"")
TEXT: Codec = (bytes.decode, str.encode)
RAW: Codec = (bytes, bytes)
COUNTER: Codec = (read_counter, write_counter)
FUTURE_ID: Codec = (_future_id, bytes)
KEY: Codec = (_is_key, bytes)
"""A place in the key space, or nothing."""

_INT = _packed(int)

# A space, and the types of its key's parts.
SPACES: dict[tuple[str, tuple[type, ...]], Codec] = {
    # cluster
    ("config", (str,)): _INT,
    ("config", (str, str)): _packed(Any),
    ("lease", (str,)): _packed(Lease),
    ("lease", (str, str)): _packed(Lease),
    ("lease", (str, str, int)): _packed(Lease),
    ("vacancies", ()): COUNTER,
    ("node", (str,)): _packed(Node),
    ("node-expiry", (int, str)): EMPTY,
    ("node-version", ()): COUNTER,
    ("part", (str, str)): _packed(Partition),
    ("part-expiry", (str, int, str)): _packed(PartitionSummary),
    ("part-floor", (str,)): _INT,
    ("map", (str,)): _packed(PartitionMap),
    # futures
    ("spec", (bytes,)): _packed(future_rows.Spec),
    ("future", (bytes,)): _packed(future_rows.AnyRow),
    ("lane", (str, str, int)): EMPTY,
    ("ready", (str, str, int, int, bytes)): _packed(future_rows.LaneEntry),
    ("assigned", (str, int, int, int, bytes)): _packed(future_rows.LaneEntry),
    ("own", (str, bytes)): EMPTY,
    ("dep", (bytes, bytes)): RAW,
    ("cursor", (bytes,)): KEY,
    ("error", (bytes,)): _packed(future_rows.Failure),
    ("copy", (bytes, str)): _packed(future_rows.Result),
    ("key", (str,)): FUTURE_ID,
    ("key", (bytes,)): FUTURE_ID,
    ("code", (bytes,)): RAW,
    ("code-state", (bytes,)): _packed(code.StoredCode),
    ("draft", (str,)): _INT,
    ("limit", (str,)): _packed(limits.Limit),
    ("running", (str,)): COUNTER,
    ("deadline", (int, bytes)): EMPTY,
    ("stranded", (bytes,)): EMPTY,
    ("hold", (str, bytes)): EMPTY,
    ("pin", (bytes, str)): EMPTY,
    ("inbox", (str, Versionstamp)): _packed(inbox.Command),
    ("garbage", (str,)): EMPTY,
    ("loose", (bytes,)): KEY,
    ("task", (str, str)): FUTURE_ID,
    ("actor", (bytes,)): _packed(actors.ActorRow),
    ("hosted", (str, bytes)): EMPTY,
    ("call", (bytes, int)): FUTURE_ID,
    ("status", (bytes,)): TEXT,
    ("swept", ()): KEY,
    ("part-future", (str, str)): FUTURE_ID,
    # lots
    ("dataset", (str, str)): _packed(datasets.DatasetRow),
    ("columns", (str, str, int)): TEXT,
    ("head", (str, str)): _INT,
    ("append-number", (str, str)): _INT,
    ("lot", (str, str, str)): _packed(lots.LotRow),
    ("replaced", (str, str, str, int)): _packed(lots.LotRow),
    ("crumbled", (str, str, str)): EMPTY,
    ("retired", (int, str, str, str, int, int)): TEXT,
    ("lot-event", (str, str, int)): _packed(events.LotEvent),
    ("producer", (str, str, str)): _packed(int | producers._Producer),
    ("receipt", (str, str, str, int)): _packed(producers._StoredReceipt),
    ("keep", (str, str)): _INT,  # of earlier releases
    ("keep", (str, str, str)): _packed(expiry.KeepPolicy),
    ("base-lot", (str, str)): _packed(base_lot.BaseLot),
    ("base-part", (str, str, int)): _packed(base_lot.BasePart),
    ("expired", (str, str)): _packed(expiry.Expired),
    ("consumer", (str, str, str)): _INT,
    ("interval", (str, str)): _packed(staging.Interval),
    ("closing", (int, str, str)): TEXT,
    ("staged", (str, str, str, Versionstamp)): _packed(staging.Staged),
    ("spent", (str, str, str)): EMPTY,
    ("wall-clock", ()): _packed(wall_clock.ClockRow),
    # triggers
    ("subscription", (str,)): _packed(subscriptions.AnyRow),
    ("subscription-floor", (str,)): _INT,
    ("due", (int, str)): _packed(tuple[int, bool]),
    ("owed", (str,)): _packed(tuple[int, int]),
    ("unready", (int, str)): _INT,
    ("subscriber", (str, str, str)): EMPTY,
    ("wake", (str, str)): EMPTY,
    ("waking", (str, str)): TEXT,
    ("wake-round", ()): KEY,
    ("template", (str,)): _packed(templates.Template),
    ("templating", (str,)): RAW,
    ("heap-form", ()): TEXT,
    ("heap-rebuild", ()): KEY,
    ("heap", (int, str, int)): EMPTY,
    ("cron", (str,)): _packed(schedules.Entry),
    ("cron-due", (int, str)): EMPTY,
    ("alarm", (str, str)): _INT,
    ("alarm-due", (int, str, str)): EMPTY,
    # publish
    ("attempt", (str,)): _packed(attempts.AnyAttempt),
    ("attempt-part", (str, int)): TEXT,
    ("attempt-of", (str, str, int, str)): EMPTY,
    ("attempt-open", (str,)): EMPTY,
    ("attempt-sweep", (int, str)): EMPTY,
    ("more", (bytes, int)): RAW,
    # arcs
    ("arc", (str,)): _packed(declarations.ArcSpec),
    ("arc-lot", (str, str, int)): _packed(arc_rows.AnyLot),
    ("arc-running", (str, str, int)): _packed(arc_rows.Holder),
    ("arc-trouble", (str, str, int)): TEXT,
    ("arc-ask", (str, str, int)): _packed(lot_requests._Row),
    ("arc-barrier", (str, str)): _INT,
    ("arc-grace", (str, int, str)): EMPTY,
    ("owner", (str, str, str)): _INT,
    ("dropped", (str, str)): _INT,
    # runners
    ("job", (str,)): _packed(dict[str, NodeMark]),
    # sources
    ("source-file", (str, str)): (_packed(taken_files.TakenFile)[0], taken_files.encode),
    ("source-content", (str, bytes)): _packed(taken_files.KnownContent),
    ("source-window-number", (str,)): _INT,
    ("source-window", (str, int)): _packed(windows.AnyWindow),
    ("source-window-page", (str, int, int)): _packed(list[ListedFile]),
    ("source-window-open", (str, int)): EMPTY,
    ("source-stretches", (str,)): _packed(listing_shards.ShardLayout),
    ("source-address", (str,)): _packed(tuple[int, str]),
    ("source-seen", (str, int, str)): _packed(listing_shards.ShardListed),
    ("source-mark", (str, str)): RAW,
    ("source-trouble", (str, str)): TEXT,
    ("source-tending", (str, str)): _packed(topic_partitions.MemberReport),
    # views
    ("certificate", (str,)): _packed(ViewCertificate),
    ("circuit", (str,)): TEXT,
    ("step-last", (str,)): _packed(records.LastRecord),
    ("step-record", (str, int)): _packed(records.StepRecord),
    ("step-base", (str, str, str)): _INT,
    ("step-range", (str, str, str, int)): _INT,
    ("group", (str, str)): _packed(groups.ViewGroup),
    ("group-step", (str, str, int)): _packed(commits.StepRow),
    ("retired", (str, str)): _packed(retired_views.RetiredTable),
    ("whole-reads", (str, str)): _packed(list[DatasetId]),
    ("failed-view", (str, str, str)): _packed(FailedView),
    ("checked-view", (str, str, str)): _packed(CheckedView),
    ("group-gone", (str, str, str)): EMPTY,
    ("view-text", (str, str)): _packed(ViewDescription),
    ("source-text", (str, str)): _packed(SourceDescription),
    ("pin", (str, str)): _INT,
    ("stepper", (str, str)): _packed(rounds.Stepping),
    ("version", (str, str, int)): _packed(versions.GroupVersion),
    ("shadow", (str, str)): _packed(shadow.Shadow),
    ("diverged", (str, str)): _packed(divergence.Diverged),
    ("ranges", (str,)): _INT,
    ("step-limit", (str,)): _packed(step_limit.StepLimit),
    ("planned", (str, str)): _packed(planned_queries.StoredQuery),
    ("analyses", (str,)): _packed(StoredAnalyses),
    # observability
    ("event-log", (Versionstamp,)): _packed(LoggedEvent),
    ("event-log-count", ()): COUNTER,
    ("alert-seen", (str,)): RAW,
    ("alert-fresh", (str, str)): _packed(Freshness),
    ("check-text", (str, str)): _packed(tuple[DeclaredCheck, ...]),
    ("alert-firing", (str, str, str)): _packed(float),
    ("alert-outbox", (str, str, str)): _packed(OutboxRow),
    ("alert-lease", (str,)): _packed(Lease),
}


NO_ROWS = frozenset({"bell", "wake-bell", "arc-bell"})
"""Keys that are watched and never written."""


def named_in_code() -> set[str]:
    """The names of all spaces and single keys that the packages declare."""
    cluster = "c"
    declared = [
        ClusterKeys(cluster),
        FutureKeys(cluster),
        RunnerKeys(cluster),
        LotKeys(cluster),
        TriggerKeys(cluster),
        PublishKeys(cluster),
        ArcKeys(cluster),
        SourceKeys(cluster),
        StepKeys(cluster),
        DescriptionKeys(cluster),
        ObservationKeys(cluster),
    ]
    values = [value for keys in declared for value in vars(keys).values()]
    prefixes = [value.prefix for value in values if isinstance(value, Space)]
    prefixes += [value for value in values if isinstance(value, bytes)]
    return {str(unpack(prefix)[1]) for prefix in prefixes}


def decoded(key: bytes, value: bytes, cluster: str) -> tuple[str, Any]:
    """The kind of a row, and what is in it; `ValueError` unless it is written as it was read."""
    name, space, *parts = unpack(key)
    if name != cluster or pack((name, space, *parts)) != key:
        raise ValueError(f"the key {key!r} is not of the cluster {cluster}")
    kind = (str(space), tuple(type(part) for part in parts))
    if kind not in SPACES:
        raise ValueError(f"no room has rows under {unpack(key)}")
    decode, encode = SPACES[kind]
    try:
        row = decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"the row {unpack(key)} cannot be read: {error}") from error
    again = encode(row)
    if again != value:
        raise ValueError(f"the row {unpack(key)} is written as {again!r}, and was {value!r}")
    return kind[0], row
