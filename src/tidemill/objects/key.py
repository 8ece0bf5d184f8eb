"""Keys of objects: which names there can be, on every backend alike.

A key is names joined by `/`. What a key may hold is what local files, S3, GCS and Azure all keep apart and
give back unchanged, so that a key that works on one works on all, and none leads out of its root:

- no empty name (hence no `/` at either end and no `//`), no `.` and no `..`;
- no control character, no lone surrogate, and no backslash (some servers take it for `/`);
- at most 255 bytes per name (file systems) and 900 in all (S3 has 1,024, the rest is for the root's prefix).

Everything else goes: spaces, quotes, `%`, `=`, `#`, any script. Order is that of the UTF-8 bytes, which is
the order of Python strings without surrogates.
"""

import re

from tidemill.errors import BadKey

KEY_BYTES = 900
NAME_BYTES = 255
RESERVED = ".tidemill"
"""What the local backend keeps for itself, as a first name; refused everywhere: trees can be copied."""

_CHARACTER = "a control character, a backslash or half a character"
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")


def check_key(key: str) -> None:
    """Raise `BadKey` unless every backend can hold an object of this name."""
    wrong = fault(key)
    if wrong:
        raise BadKey(f"not a key: {key!a:.200}: {wrong}")


def check_prefix(prefix: str) -> None:
    """Raise `BadKey` unless keys could begin like this; empty, or cut anywhere in a name, is fine."""
    folder, _, partial = prefix.rpartition("/")
    wrong = fault(folder) if "/" in prefix else ""
    if not wrong and _FORBIDDEN.search(partial):
        wrong = _CHARACTER
    if wrong:
        raise BadKey(f"no key begins with {prefix!a:.200}: {wrong}")


def fault(key: str) -> str:
    """What is wrong with a key; empty when nothing is."""
    if not key:
        return "it is empty"
    if _FORBIDDEN.search(key):
        return _CHARACTER
    size = len(key.encode())
    if size > KEY_BYTES:
        return f"{size} bytes, at most {KEY_BYTES}"
    names = key.split("/")
    for name in names:
        if name in ("", ".", ".."):
            return f"the name {name!r} in it"
        if len(name) > NAME_BYTES // 4 and len(name.encode()) > NAME_BYTES:
            return f"a name of more than {NAME_BYTES} bytes"
    if names[0] == RESERVED:
        return f"{RESERVED} is reserved"
    return ""
