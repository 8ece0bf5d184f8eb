"""References to secrets: a setting says where its value is, so that no file of a project contains it.

env:SHOP_STORE            the value of an environment variable
file:/run/secrets/store   the content of a file, without spaces and line ends around it
"""

import os
from collections.abc import Mapping

from tidemill.errors import UsageError
from tidemill.paths import expanded

ENVIRONMENT, FILE = "env:", "file:"


def is_reference(value: str) -> bool:
    """Return whether a value is a reference. `file://…` is a URL.

    >>> is_reference("env:SHOP_STORE"), is_reference("file:///data"), is_reference("s3://bucket")
    (True, False, False)
    """
    return value.startswith(ENVIRONMENT) or (value.startswith(FILE) and not value.startswith("file://"))


def dereferenced(value: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the value that a reference names; return any other value unchanged.

    >>> dereferenced("env:STORE", {"STORE": "postgresql://db/shop"}), dereferenced("s3://bucket")
    ('postgresql://db/shop', 's3://bucket')
    """
    if not is_reference(value):
        return value
    if value.startswith(ENVIRONMENT):
        name = value.removeprefix(ENVIRONMENT)
        if not environ.get(name):
            raise UsageError(
                f"a setting refers to {value}, but this environment variable is not set",
                hint=f"set {name} in the environment of this process",
            )
        return environ[name]
    path = expanded(value.removeprefix(FILE))
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(
            f"a setting refers to {value}, but the file cannot be read: {reason}",
            hint="create the file, or correct the path",
        ) from None
