"""Paths that users write: a file system can hold them, and `~` is expanded."""

import os
from pathlib import Path

from tidemill.errors import BadUrl

_HINT = "use a path without NUL characters, and ~ only for the home folder of an existing user"


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` expanded; raise `BadUrl` if no file system can have such a path."""
    text = os.fspath(path)
    try:
        if b"\0" in os.fsencode(text):
            raise BadUrl(f"the path {text!r:.200} contains a NUL character", hint=_HINT)
        return Path(text).expanduser()
    except UnicodeEncodeError:
        raise BadUrl(f"the path {text!a:.200} is not valid Unicode", hint=_HINT) from None
    except RuntimeError:
        raise BadUrl(f"the path {text!r:.200} names a user that does not exist", hint=_HINT) from None
