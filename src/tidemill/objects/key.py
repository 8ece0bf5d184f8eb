"""The keys of objects: which names are valid on every backend.

A key is a list of names joined by `/`. A key may contain only characters that local files, S3, GCS and Azure
all distinguish and return unchanged. So a key that works on one backend works on all, and no key points
outside of its root:

- no empty name (so no `/` at either end and no `//`), no `.` and no `..`;
- no control character, no lone surrogate, and no backslash (some servers treat it as `/`);
- at most 255 bytes per name (the limit of file systems) and 900 per key (S3 allows 1,024; the rest is for the
  root's prefix).

Everything else is valid: spaces, quotes, `%`, `=`, `#`, any script. Keys sort by their UTF-8 bytes. Python
strings without surrogates sort in the same order.
"""

import re
from collections.abc import Iterable

from tidemill.errors import BadKey

KEY_BYTES = 900
NAME_BYTES = 255
RESERVED = ".tidemill"
"""The local backend reserves this first name.

All backends refuse it, so that objects can be copied between them.
"""

_CHARACTER = "it has a control character, a backslash or a lone surrogate"
_NAME = r"[\w%=-][\w%=.-]{0,62}"
_PLAIN = re.compile(rf"{_NAME}(?:/{_NAME}){{0,13}}", re.ASCII)
_PLAIN_FOLDER = re.compile(rf"{_NAME}(?:/{_NAME}){{0,12}}", re.ASCII)
_PLAIN_NAME = re.compile(_NAME, re.ASCII)
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


def check_key(key: str) -> None:
    """Raise `BadKey` unless every backend can store an object with this key."""
    reason = fault(key)
    if reason:
        raise BadKey(f"invalid object key {key!a:.200}: {reason}")


def check_keys(keys: Iterable[str]) -> None:
    """Check many keys, of which most are in the same few folders. Each such folder is checked once."""
    folders: set[str] = set()
    for key in keys:
        folder, _, name = key.rpartition("/")
        if folder in folders and _PLAIN_NAME.fullmatch(name):
            continue  # then the key has at most 14 names of 63 bytes
        check_key(key)
        if _PLAIN_FOLDER.fullmatch(folder):
            folders.add(folder)


def check_prefix(prefix: str) -> None:
    """Raise `BadKey` unless valid keys can begin with this prefix. It may be empty, or end within a name."""
    folder, _, partial = prefix.rpartition("/")
    reason = fault(folder) if "/" in prefix else ""
    if not reason and _FORBIDDEN.search(partial):
        reason = _CHARACTER
    if reason:
        raise BadKey(f"invalid key prefix {prefix!a:.200}: {reason}")


def fault(key: str) -> str:
    """Return why a key is not valid; an empty string if it is valid."""
    if _PLAIN.fullmatch(key):  # almost every key: at most 14 names of 63 bytes
        return ""
    if not key:
        return "it is empty"
    if _FORBIDDEN.search(key):
        return _CHARACTER
    size = len(key.encode())
    if size > KEY_BYTES:
        return f"it has {size} bytes; the limit is {KEY_BYTES}"
    names = key.split("/")
    for name in names:
        if name in ("", ".", ".."):
            return f"it contains the name {name!r}"
        if len(name) > NAME_BYTES // 4 and len(name.encode()) > NAME_BYTES:
            return f"one of its names has more than {NAME_BYTES} bytes"
    if names[0] == RESERVED:
        return f"{RESERVED} is reserved"
    return ""
