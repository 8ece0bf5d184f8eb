"""Objects on S3, Google Cloud Storage and Azure Blob Storage, through obstore.

**Retries.** obstore's own retries are off: only the code that repeats a request knows that an earlier try may
have succeeded. If the condition of a conditional write fails after a lost response, we read the object. If
the object has our body, our write succeeded. Each request has a timeout, and retries end after twice that
time.

**Listing.** S3, GCS and Azure list by key bytes, and can start after any key. Some servers that are
compatible with S3 list by folders instead (SeaweedFS, S3 Express buckets). A listing by such a
server is incomplete if it starts after a key. Unless a provider is known to list by key (`flat`), we list by
folders ourselves and sort. That costs more requests, but is always correct.

**Processes.** obstore's threads do not survive a fork, and its calls would then wait forever. If
`RemoteObjects` is used before a fork and again in the child, it raises an error.
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
from tidemill.objects.folder_walk import FolderEntry, walk
from tidemill.objects.key import fault
from tidemill.objects.port import Bodies, Body, ObjectInfo, Objects
from tidemill.objects.provider_errors import Refusal, RefusalKind, classify
from tidemill.objects.url import RemoteUrl

if TYPE_CHECKING:
    from obstore import ObjectMeta, UpdateVersion

T = TypeVar("T")
Store = S3Store | GCSStore | AzureStore

_PAGE = 1000  # objects in one page of a listing
_TRIES = 8  # with about four seconds of waiting in between
_PART_BYTES = 16 * 1024 * 1024  # a plain put uploads larger bodies in parts
_NEAR_BYTES = 256 * 1024  # ranges this close are fetched as one
_runtime_pid: int | None = None


class RemoteObjects(Objects):
    """One bucket, or the objects under a prefix.

    Args:
        where: the parsed URL.
        clock: for waiting between retries, and for the time of a put.
        chance: spreads the retries.
        flat: whether the provider lists by key bytes; False is always correct.
        if_match: whether the provider supports conditional replacement.
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
        """The parsed URL with its secrets, to pass them on to Spark."""
        return self._where

    @property
    def supports_if_match(self) -> bool:
        return self._if_match

    # --- writing

    def _put(self, key: str, body: Body) -> ObjectInfo:
        response = self._request(
            "put", key, lambda store, path: store.put(path, body, chunk_size=_PART_BYTES)
        )
        return ObjectInfo(key, len(body), response["e_tag"] or "", self._clock.wall())

    def _create(self, key: str, body: Body) -> bool:
        try:
            self._try(
                lambda store, path: store.put(path, body, mode="create", use_multipart=False),
                self._root + key,
            )
        except Refusal as refused:
            if refused.kind in (RefusalKind.EXISTS, RefusalKind.CONDITION):
                return False
            raise self._error(refused, "put_if_absent", key) from None
        return True

    def _put_if_match(self, key: str, body: Body, etag: str) -> ObjectInfo:
        expected: UpdateVersion = {"e_tag": etag}
        if self._where.kind == "gs":
            expected["version"] = self._version(key, etag)
        try:
            response = self._try(
                lambda store, path: store.put(path, body, mode=expected, use_multipart=False),
                self._root + key,
            )
        except Refusal as refused:
            if refused.kind not in (RefusalKind.CONDITION, RefusalKind.EXISTS, RefusalKind.MISSING):
                raise self._error(refused, "put_if_match", key) from None
            written = self._find_ours(key, body) if refused.lost else None
            if written is None:
                raise self._changed(key, etag) from None
            return written
        return ObjectInfo(key, len(body), response["e_tag"] or "", self._clock.wall())

    def _changed(self, key: str, etag: str) -> ObjectConflict:
        return ObjectConflict(f"{key!r} in {self.url} was changed or deleted: its ETag is no longer {etag}")

    def _version(self, key: str, etag: str) -> str | None:
        """Return the generation of the object with this ETag.

        Google uses the generation as the condition of a write. Listings do not contain it.
        """
        try:
            meta = self._try(lambda store, path: store.head(path), self._root + key)
        except Refusal as refused:
            if refused.kind is not RefusalKind.MISSING:
                raise self._error(refused, "put_if_match", key) from None
            meta = None
        if meta is None or meta["e_tag"] != etag:
            raise self._changed(key, etag)
        return meta["version"]

    def _find_ours(self, key: str, body: Body) -> ObjectInfo | None:
        """Return the object if it has our body."""
        try:
            current, info = self._get(key)
        except ObjectMissing:
            return None
        return info if current == body else None

    def _delete_many(self, keys: Sequence[str]) -> None:
        paths = [self._root + key for key in keys]
        if self._where.kind == "s3" and len(keys) > 1:
            self._request("delete", keys[0], lambda store, _: store.delete(paths))
            return
        for key in keys:
            try:
                self._try(lambda store, path: store.delete(path), self._root + key)
            except Refusal as refused:
                if refused.kind is not RefusalKind.MISSING:
                    raise self._error(refused, "delete", key) from None

    # --- reading

    def _get(self, key: str) -> tuple[bytes, ObjectInfo]:
        def fetch(store: Store, path: str) -> tuple[bytes, "ObjectMeta"]:
            response = store.get(path)
            return response.bytes().to_bytes(), response.meta

        body, meta = self._request("get", key, fetch)
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
        """Read spans (start, end) in order, up to the end of the object. The first response has its size.

        obstore fetches several spans in parallel, and panics if a span begins after the end of the object.
        """

        def first(store: Store, path: str) -> tuple[bytes, int]:
            response = store.get(path, options={"range": spans[0]})
            return response.bytes().to_bytes(), response.meta["size"]

        try:
            body, size = self._try(first, self._root + key)
        except Refusal as refused:
            if refused.kind is RefusalKind.RANGE:
                return
            raise self._error(refused, "get_ranges", key) from None
        yield spans[0][0], body
        rest = [(start, min(end, size)) for start, end in spans[1:] if start < size]
        if rest:
            starts, ends = [start for start, _ in rest], [end for _, end in rest]
            bodies = self._request(
                "get_ranges",
                key,
                lambda store, path: store.get_ranges(path, starts=starts, ends=ends, coalesce=0),
            )
            yield from zip(starts, (body.to_bytes() for body in bodies), strict=True)

    def _head(self, key: str) -> ObjectInfo:
        return _info(key, self._request("head", key, lambda store, path: store.head(path)))

    def _list(self, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
        return self._in_order(prefix, after, ahead=True)

    def _list_lazily(self, prefix: str, after: str | None) -> Iterator[ObjectInfo]:
        return self._in_order(prefix, after, ahead=False)

    def _in_order(self, prefix: str, after: str | None, *, ahead: bool) -> Iterator[ObjectInfo]:
        if not self._flat:
            for key, meta in walk(self._entries, prefix, after):
                yield _info(key, meta)
            return
        last = ""
        for meta in self._listed(prefix, after, ahead=ahead):
            key = meta["path"].removeprefix(self._root)
            if key <= last:
                raise ObjectError(
                    f"{self.url} does not list its objects in key order",
                    hint="add listing=folders to its URL",
                )
            last = key
            if key > prefix and not key.startswith(prefix):
                return
            if key.startswith(prefix) and (after is None or key > after) and not fault(key):
                yield _info(key, meta)

    def _list_foreign(
        self, prefix: str, after: str | None, skip: Callable[[str, str], None]
    ) -> Iterator[ObjectInfo]:
        """List by folders after the first bad name, so that a bad name hides only its folder, not a page."""
        last = after
        if self._flat:
            try:
                for info in self._list(prefix, after):
                    last = info.key
                    yield info
                return
            except BadKey:
                pass  # continue from there
        for key, meta in walk(lambda folder: self._entries(folder, skip), prefix, last):
            yield _info(key, meta)

    def _listed(self, prefix: str, after: str | None, *, ahead: bool) -> Iterator["ObjectMeta"]:
        """Return the provider's own listing, from a little before the first wanted object."""
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
                stream = None  # the next try begins after the last page
                raise

        def fetched() -> "Sequence[ObjectMeta]":
            nonlocal offset
            metas = self._request("list", prefix, page)
            if metas:
                offset = metas[-1]["path"]
            return metas

        metas = fetched()
        if not ahead or len(metas) < _PAGE:  # most listings have one page
            while metas:
                yield from metas
                metas = fetched()
            return
        # Fetch the next page while the caller reads this one.
        with ThreadPoolExecutor(1, thread_name_prefix="objects-list") as prefetch:
            while metas:
                following = prefetch.submit(fetched)
                yield from metas
                metas = following.result()

    def _entries(
        self, folder: str, skip: Callable[[str, str], None] | None = None
    ) -> Iterator[FolderEntry["ObjectMeta"]]:
        path = (self._root + folder).rstrip("/")
        try:
            level = self._request("list", folder, lambda store, _: store.list_with_delimiter(path or None))
        except BadKey as bad:
            if skip is None:
                raise
            skip(folder, bad.message)
            return
        cut = len(path) + 1 if path else 0
        entries: list[tuple[str, ObjectMeta | None]] = [(name, None) for name in level["common_prefixes"]]
        entries += [(meta["path"], meta) for meta in level["objects"]]
        for name, meta in entries:
            reason = fault(folder + name[cut:])
            if not reason:
                yield FolderEntry(name[cut:], meta)
            elif skip is not None:
                skip(folder + name[cut:], reason)

    # --- requests

    def _request(self, method: str, key: str, request: Callable[[Store, str], T]) -> T:
        try:
            return self._try(request, self._root + key)
        except Refusal as refused:
            raise self._error(refused, method, key) from None

    def _try(self, request: Callable[[Store, str], T], path: str) -> T:
        """Send a request, up to eight times if there is no response. Raise `Refusal` if it fails."""
        end = self._clock.monotonic() + 2 * self._where.timeout_s
        store = self._store()
        for attempt in range(1, _TRIES + 1):
            try:
                return request(store, path)
            except BaseException as error:
                if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                    raise
                kind, text = classify(error)
            # raised outside of `except`, so that it does not chain obstore's error, which has secrets
            if kind is not RefusalKind.TRANSIENT or attempt == _TRIES or self._clock.monotonic() > end:
                break
            self._clock.sleep(backoff(attempt, self._chance, first_s=0.05, most_s=2.0))
        raise Refusal(kind, text, lost=attempt > 1)

    def _store(self) -> Store:
        global _runtime_pid
        pid = os.getpid()
        if _runtime_pid is None:
            _runtime_pid = pid
        if _runtime_pid != pid:
            raise ObjectUnavailable(
                "object storage was already used before this process was forked",
                hint="start child processes with spawn, or fork before the first use",
            )
        return self._opened

    def _error(self, refused: Refusal, method: str, key: str) -> ObjectError | UsageError:
        message = f"{method} {key!r} in {self.url}: {refused.text}"
        match refused.kind:
            case RefusalKind.MISSING:
                return ObjectMissing(message)
            case RefusalKind.EXISTS | RefusalKind.CONDITION:
                return ObjectConflict(message)
            case RefusalKind.NAME:
                return BadKey(
                    message,
                    hint="another program stored an object with a name like a//b there; use another prefix",
                )
            case RefusalKind.FULL:
                return ObjectsFull(message)
            case RefusalKind.CLOCK:
                return ObjectUnavailable(
                    message,
                    hint="set the clock of this machine; the server refuses signatures of other times",
                )
            case RefusalKind.UNSUPPORTED:
                return UsageError(message, hint="use another provider, or do without this feature")
            case _:
                return ObjectUnavailable(message)


def _open(where: RemoteUrl) -> Store:
    """Open the provider with obstore; this makes no connection yet."""
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
    except Exception as error:  # noqa: BLE001 - its text may quote a credential
        reason = type(error).__name__
    raise BadUrl(
        f"the settings of {where.shown} are not valid ({reason})",
        hint="check the format of the credentials; for Azure, set account=… or the environment variables",
    )


def _info(key: str, meta: "ObjectMeta") -> ObjectInfo:
    return ObjectInfo(key, meta["size"], meta["e_tag"] or "", meta["last_modified"].timestamp())


def join_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Convert ranges (start, length) to sorted spans (start, end), and join those near each other.

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
    """Return a string that sorts before every key with this prefix, and after nearly all smaller keys.

    >>> before("lots/7") < "lots/7" < before("lots/8")
    True
    """
    if not prefix or prefix.endswith("/"):
        return ""
    low = prefix[:-1] + chr(ord(prefix[-1]) - 1) + "\U0010fffd"
    return prefix[:-1] if fault(low) else low
