"""Objects on S3, Google Cloud Storage and Azure Blob Storage, through obstore.

**Repeating.** obstore's own retries are off: only who repeats a request knows that an earlier try may have
landed. A conditional write that finds its condition broken after a lost answer looks at what is there, and
when it is our body, our write had landed. Each request has a timeout, and repeating ends after twice that.

**Listing.** S3, GCS and Azure list by key bytes, and an object behind a key is found by asking for what
follows it. Some servers that speak S3 list folder by folder instead (SeaweedFS, S3 Express buckets), and what
they answer to "after this key" lacks objects. Unless a provider is known to list by key (`flat`), we read
folder by folder ourselves and put the order right: dearer, never wrong.

**Processes.** obstore's threads do not survive a fork, and its calls then wait for ever. Used before a fork
and again in the child, this raises instead.
"""

import os
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from obstore.store import AzureStore, GCSStore, S3Store

from tidemill.clock import Clock, backoff
from tidemill.errors import (
    BadKey,
    BadUrl,
    ObjectConflict,
    ObjectError,
    ObjectMissing,
    ObjectsFull,
    ObjectUnavailable,
    UsageError,
)
from tidemill.objects.key import fault
from tidemill.objects.port import Bodies, Body, Info, Objects
from tidemill.objects.refusal import Refused, Why, why
from tidemill.objects.url import RemoteUrl
from tidemill.objects.walk import Entry, walk

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion

T = TypeVar("T")
Store = S3Store | GCSStore | AzureStore

_PAGE = 1000  # objects in one answer of a listing
_TRIES = 8  # some four seconds of waiting in between
_PART_BYTES = 16 * 1024 * 1024  # larger bodies of a plain put go up in parts
_NEAR_BYTES = 256 * 1024  # ranges this close are fetched as one
_runtime_pid: int | None = None


class RemoteObjects(Objects):
    """One bucket, or the part of it under a prefix.

    Args:
        where: the parsed URL.
        clock: waits between repetitions, and says when a put was answered.
        chance: spreads the repetitions.
        flat: whether the provider lists by key bytes; False is always right.
        if_match: whether the provider has conditional replacement.
    """

    def __init__(
        self, where: RemoteUrl, clock: Clock, chance: random.Random, *, flat: bool, if_match: bool = True
    ) -> None:
        self._where = where
        self._clock = clock
        self._chance = chance
        self._flat = flat
        self._if_match = if_match
        self._root = where.prefix + "/" if where.prefix else ""
        self._opened = _open(where)

    @property
    def url(self) -> str:
        return self._where.shown

    @property
    def where(self) -> RemoteUrl:
        """The parsed URL, secrets included: for who must hand them on, such as Spark."""
        return self._where

    @property
    def supports_if_match(self) -> bool:
        return self._if_match

    # --- writing

    def _put(self, key: str, body: Body) -> Info:
        done = self._ask("put", key, lambda store, path: store.put(path, body, chunk_size=_PART_BYTES))
        return Info(key, len(body), done["e_tag"] or "", self._clock.wall())

    def _create(self, key: str, body: Body) -> bool:
        try:
            self._try(
                lambda store, path: store.put(path, body, mode="create", use_multipart=False),
                self._root + key,
            )
        except Refused as refused:
            if refused.kind in (Why.EXISTS, Why.CONDITION):
                return False
            raise self._error(refused, "put_if_absent", key) from None
        return True

    def _put_if_match(self, key: str, body: Body, etag: str) -> Info:
        expected: UpdateVersion = {"e_tag": etag}
        if self._where.kind == "gs":
            expected["version"] = self._version(key, etag)
        try:
            done = self._try(
                lambda store, path: store.put(path, body, mode=expected, use_multipart=False),
                self._root + key,
            )
        except Refused as refused:
            if refused.kind not in (Why.CONDITION, Why.EXISTS, Why.MISSING):
                raise self._error(refused, "put_if_match", key) from None
            landed = self._landed(key, body) if refused.lost else None
            if landed is None:
                raise ObjectConflict(f"{key!r} in {self.url} is not the object with etag {etag}") from None
            return landed
        return Info(key, len(body), done["e_tag"] or "", self._clock.wall())

    def _version(self, key: str, etag: str) -> str | None:
        """The generation behind an etag: Google's condition. Listings do not tell it."""
        try:
            found = self._try(lambda store, path: store.head(path), self._root + key)
        except Refused as refused:
            if refused.kind is not Why.MISSING:
                raise self._error(refused, "put_if_match", key) from None
            found = None
        if found is None or found["e_tag"] != etag:
            raise ObjectConflict(f"{key!r} in {self.url} is not the object with etag {etag}")
        return found["version"]

    def _landed(self, key: str, body: Body) -> Info | None:
        """What is there, if it is our body."""
        try:
            there, info = self._get(key)
        except ObjectMissing:
            return None
        return info if there == body else None

    def _delete_many(self, keys: Sequence[str]) -> None:
        paths = [self._root + key for key in keys]
        if self._where.kind == "s3" and len(keys) > 1:
            self._ask("delete", keys[0], lambda store, _: store.delete(paths))
            return
        for key in keys:
            try:
                self._try(lambda store, path: store.delete(path), self._root + key)
            except Refused as refused:
                if refused.kind is not Why.MISSING:
                    raise self._error(refused, "delete", key) from None

    # --- reading

    def _get(self, key: str) -> tuple[bytes, Info]:
        def fetch(store: Store, path: str) -> tuple[bytes, "ObjectMeta"]:
            answer = store.get(path)
            return answer.bytes().to_bytes(), answer.meta

        body, meta = self._ask("get", key, fetch)
        return body, _info(key, meta)

    def _get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Bodies:
        spans = join_ranges(ranges)
        starts = [start for start, _ in spans]
        fetched = dict(self._spans(key, spans))
        out: Bodies = []
        for start, length in ranges:
            span = starts[bisect_right(starts, start) - 1]
            out.append(fetched.get(span, b"")[start - span : start - span + length])
        return out

    def _spans(self, key: str, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        """Spans (start, end) in order, until the end of the object: the first tells where that is.

        obstore fetches several spans side by side, and panics at one that begins behind the end.
        """

        def first(store: Store, path: str) -> tuple[bytes, int]:
            answer = store.get(path, options={"range": spans[0]})
            return answer.bytes().to_bytes(), answer.meta["size"]

        try:
            body, size = self._try(first, self._root + key)
        except Refused as refused:
            if refused.kind is Why.RANGE:
                return
            raise self._error(refused, "get_ranges", key) from None
        yield spans[0][0], body
        rest = [(start, min(end, size)) for start, end in spans[1:] if start < size]
        if rest:
            starts, ends = [start for start, _ in rest], [end for _, end in rest]
            bodies = self._ask(
                "get_ranges",
                key,
                lambda store, path: store.get_ranges(path, starts=starts, ends=ends, coalesce=0),
            )
            yield from zip(starts, (body.to_bytes() for body in bodies), strict=True)

    def _head(self, key: str) -> Info:
        return _info(key, self._ask("head", key, lambda store, path: store.head(path)))

    def _list(self, prefix: str, after: str | None) -> Iterator[Info]:
        return self._in_order(prefix, after, ahead=True)

    def _list_lazily(self, prefix: str, after: str | None) -> Iterator[Info]:
        return self._in_order(prefix, after, ahead=False)

    def _in_order(self, prefix: str, after: str | None, *, ahead: bool) -> Iterator[Info]:
        if not self._flat:
            for key, meta in walk(self._entries, prefix, after):
                yield _info(key, meta)
            return
        last = ""
        for meta in self._listed(prefix, after, ahead=ahead):
            key = meta["path"].removeprefix(self._root)
            if key <= last:
                raise ObjectError(
                    f"{self.url} does not list in key order", hint="add listing=folders to its URL"
                )
            last = key
            if key > prefix and not key.startswith(prefix):
                return
            if key.startswith(prefix) and (after is None or key > after) and not fault(key):
                yield _info(key, meta)

    def _list_foreign(
        self, prefix: str, after: str | None, skip: Callable[[str, str], None]
    ) -> Iterator[Info]:
        """One strange name spoils the page it is on; folder by folder it spoils its own folder alone."""
        last = after
        if self._flat:
            try:
                for info in self._list(prefix, after):
                    last = info.key
                    yield info
                return
            except BadKey:
                pass  # go on from there
        for key, meta in walk(lambda folder: self._entries(folder, skip), prefix, last):
            yield _info(key, meta)

    def _listed(self, prefix: str, after: str | None, *, ahead: bool) -> Iterator["ObjectMeta"]:
        """What the provider lists from somewhat before the first object that is wanted."""
        folder = (self._root + prefix).rpartition("/")[0] or None
        low = max(after or "", before(prefix))
        while low and fault(low):
            low = low[:-1]  # a shorter string sorts before it, so nothing is missed
        offset = self._root + low if low else None
        stream: Iterator[Sequence[ObjectMeta]] | None = None

        def page(store: Store, _: str) -> "Sequence[ObjectMeta]":
            nonlocal stream
            if stream is None:
                stream = iter(store.list(folder, offset=offset, chunk_size=_PAGE))
            try:
                return next(stream, ())
            except BaseException:
                stream = None  # the next try begins behind the last page
                raise

        def fetched() -> "Sequence[ObjectMeta]":
            nonlocal offset
            found = self._ask("list", prefix, page)
            if found:
                offset = found[-1]["path"]
            return found

        found = fetched()
        if not ahead or len(found) < _PAGE:  # most listings: there is hardly more
            while found:
                yield from found
                found = fetched()
            return
        # The provider looks for the next page while this one is gone through.
        with ThreadPoolExecutor(1, thread_name_prefix="objects-list") as scout:
            while found:
                coming = scout.submit(fetched)
                yield from found
                found = coming.result()

    def _entries(
        self, folder: str, skip: Callable[[str, str], None] | None = None
    ) -> Iterator[Entry["ObjectMeta"]]:
        path = (self._root + folder).rstrip("/")
        try:
            level = self._ask("list", folder, lambda store, _: store.list_with_delimiter(path or None))
        except BadKey as strange:
            if skip is None:
                raise
            skip(folder, strange.message)
            return
        cut = len(path) + 1 if path else 0
        found: list[tuple[str, ObjectMeta | None]] = [(each, None) for each in level["common_prefixes"]]
        found += [(meta["path"], meta) for meta in level["objects"]]
        for each, meta in found:
            wrong = fault(folder + each[cut:])
            if not wrong:
                yield Entry(each[cut:], meta)
            elif skip is not None:
                skip(folder + each[cut:], wrong)

    # --- asking

    def _ask(self, what: str, key: str, request: Callable[[Store, str], T]) -> T:
        try:
            return self._try(request, self._root + key)
        except Refused as refused:
            raise self._error(refused, what, key) from None

    def _try(self, request: Callable[[Store, str], T], path: str) -> T:
        """Make a request until it is answered, at most eight times; raises `Refused`."""
        end = self._clock.monotonic() + 2 * self._where.timeout_s
        store = self._store()
        for attempt in range(1, _TRIES + 1):
            try:
                return request(store, path)
            except BaseException as error:
                if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                    raise
                kind, text = why(error)
            # raised out here, the error below has no hidden link to obstore's, which names too much
            if kind is not Why.TRANSIENT or attempt == _TRIES or self._clock.monotonic() > end:
                break
            self._clock.sleep(backoff(attempt, self._chance, first_s=0.05, most_s=2.0))
        raise Refused(kind, text, lost=attempt > 1)

    def _store(self) -> Store:
        global _runtime_pid
        pid = os.getpid()
        if _runtime_pid is None:
            _runtime_pid = pid
        if _runtime_pid != pid:
            raise ObjectUnavailable(
                "object storage was used in a process that was then forked",
                hint="start child processes with spawn, or fork before the first use",
            )
        return self._opened

    def _error(self, refused: Refused, what: str, key: str) -> ObjectError | UsageError:
        message = f"{what} {key!r} in {self.url}: {refused.text}"
        match refused.kind:
            case Why.MISSING:
                return ObjectMissing(message)
            case Why.EXISTS | Why.CONDITION:
                return ObjectConflict(message)
            case Why.NAME:
                return BadKey(message, hint="somebody wrote a name like a//b there: use a prefix of your own")
            case Why.FULL:
                return ObjectsFull(message, hint="make room in the bucket; what was written before is whole")
            case Why.UNSUPPORTED:
                return UsageError(message, hint="the provider lacks this; use another, or do without it")
            case _:
                return ObjectUnavailable(message)


def _open(where: RemoteUrl) -> Store:
    """The provider as obstore sees it; makes no connection yet."""
    config = {**where.settings, **where.secrets}
    timeout = timedelta(seconds=where.timeout_s)
    connect = timedelta(seconds=min(5.0, where.timeout_s))
    kinds: dict[str, type[Store]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    try:
        return kinds[where.kind](
            where.bucket,
            config=config,  # type: ignore[arg-type]
            client_options={"timeout": timeout, "connect_timeout": connect}
            | ({"allow_http": True} if where.allow_http else {}),  # type: ignore[arg-type]
            retry_config={"max_retries": 0},
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, its text may quote a credential
        wrong = type(error).__name__
    raise BadUrl(
        f"the settings of {where.shown} were refused ({wrong})",
        hint="check the form of the credentials; Azure needs an account (account=… or the environment)",
    )


def _info(key: str, meta: "ObjectMeta") -> Info:
    return Info(key, meta["size"], meta["e_tag"] or "", meta["last_modified"].timestamp())


def join_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges (start, length) as spans (start, end) in order, those near each other joined into one.

    >>> join_ranges([(5, 2), (0, 3), (10_000_000, 1)])
    [(0, 7), (10000000, 10000001)]
    """
    spans: list[tuple[int, int]] = []
    for start, length in sorted(ranges):
        if spans and start <= spans[-1][1] + _NEAR_BYTES:
            spans[-1] = spans[-1][0], max(spans[-1][1], start + length)
        else:
            spans.append((start, start + length))
    return spans


def before(prefix: str) -> str:
    """A string that sorts before every key with this prefix, and behind nearly every key before those.

    >>> before("lots/7") < "lots/7" < before("lots/8")
    True
    """
    if not prefix or prefix.endswith("/"):
        return ""
    low = prefix[:-1] + chr(ord(prefix[-1]) - 1) + "\U0010fffd"
    return prefix[:-1] if fault(low) else low
