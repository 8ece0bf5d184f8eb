"""Convert keys of the object storage to the URIs that Spark reads or writes, and back.

The address of an object has three forms. Each form works for every name, with `=`, `%`, blanks, quotes and
any script:

    key         data/name=D/…/by.city=New York/part-0.parquet        in manifests
    uri         file:///base/data/name=D/…/by.city=New York/part-0…  given to Spark: not encoded, except
                                                                     that pattern characters are escaped
    file_path   file:/base/data/name=D/…/by.city=New%20York/part-0…  `_metadata.file_path`, a java.net.URI

Spark accesses objects with Hadoop's file systems. Credentials in the URL of the object storage are passed as
options of each read and write. They are never in the settings of a session, in the arguments of a process or
in a log. Spark redacts such options when it shows a plan.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from tidemill.errors import UsageError
from tidemill.objects import Objects
from tidemill.objects.durable_files import Folders, sync_file
from tidemill.objects.local import LocalObjects
from tidemill.objects.url import RemoteUrl

_GLOB: Final = re.compile(r"[\\\[\]{}*?]")
# Besides letters and digits, java.net.URI does not quote the first set in a path. It quotes the blanks below.
_URI_PLAIN: Final = "_-!.~'()*:@&=+$,;/"
_URI_BLANKS: Final = re.compile("[\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
_WRITING: Final[Mapping[str, str]] = {
    # The manifest lists all files, so no marker object is needed. A task that did not commit leaves no file.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}
_WRITING_FILES: Final[Mapping[str, str]] = {
    # Without these, Hadoop writes a checksum file next to every file.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


class Storage:
    """The object storage of a cluster, for Spark.

    Args:
        objects: the opened object storage: a folder, or a bucket that Spark has a connector for.
    """

    def __init__(self, objects: Objects) -> None:
        self.objects = objects
        self._folders: Folders | None = None
        self._root_path: Path | None = None
        self._options: dict[str, str] = {}
        if isinstance(objects, LocalObjects):
            self._root_path = objects.root
            self._folders = Folders(objects.root)
            self._root = "file://" + objects.root.as_posix().rstrip("/") + "/"
            self._reported = "file:" + objects.root.as_posix().rstrip("/") + "/"
        else:
            where: object = getattr(objects, "where", None)
            if not isinstance(where, RemoteUrl):
                raise UsageError(
                    f"Spark cannot access {objects.url}",
                    hint="use a folder or a bucket; only this process can access memory://",
                )
            self._root = self._reported = _remote_root(where)
            self._options = _s3a_options(where) if where.kind == "s3" else {}

    def __repr__(self) -> str:
        return f"<Storage {self.objects.url}>"

    @property
    def local(self) -> bool:
        """Whether objects are files in a folder. Every Spark machine needs that folder at the same path."""
        return self._root_path is not None

    # --- addresses

    def uri(self, key: str) -> str:
        """Return the URI that Spark writes to."""
        return self._root + key

    def read_uri(self, key: str) -> str:
        """Return the URI that Spark reads: `uri` with pattern characters escaped."""
        return _GLOB.sub(r"\\\g<0>", self._root + key)

    def file_path(self, key: str) -> str:
        """Return the path that Spark reports for a file: `_metadata.file_path`."""
        scheme, colon, path = (self._reported + key).partition(":")
        return scheme + colon + _uri_quoted(path)

    def key(self, file_path: str) -> str:
        """Return the key for a path that Spark reports. Raise `UsageError` if it is not in this storage.

        Spark writes `file:/a`, and in some messages `file:///a`.
        """
        path = re.sub(r"^file:/{2,}", "file:/", unquote(file_path))
        if not path.startswith(self._reported):
            raise UsageError(
                f"{file_path} is not in {self.objects.url}",
                hint="pass the path of an object that belongs to a lot",
            )
        return path.removeprefix(self._reported)

    # --- settings

    def read_options(self) -> dict[str, str]:
        """Return the options for a read."""
        return dict(self._options)

    def write_options(self) -> dict[str, str]:
        """Return the options for a write."""
        return {**self._options, **_WRITING, **(_WRITING_FILES if self.local else {})}

    # --- durability

    def sync(self, keys: Iterable[str]) -> None:
        """Sync files that Spark wrote under these keys, so that they survive a power failure.

        Spark closes files without syncing them. A bucket needs no sync: when it confirms a write, the object
        is durable.
        """
        if self._root_path is None or self._folders is None:
            return
        folders: dict[Path, None] = {}
        for key in keys:
            path = self._root_path / key
            sync_file(path)
            folders[path.parent] = None
        for folder in folders:
            self._folders.sync(folder)


def _remote_root(where: RemoteUrl) -> str:
    prefix = where.prefix + "/" if where.prefix else ""
    match where.kind:
        case "s3":
            return f"s3a://{where.bucket}/{prefix}"
        case "gs":
            return f"gs://{where.bucket}/{prefix}"
        case _:
            account = {**where.settings, **where.secrets}.get("account_name")
            if account is None:
                raise UsageError(
                    f"{where.shown} has no account, which Spark needs",
                    hint="write az://container/prefix?account=NAME",
                )
            return f"abfss://{where.bucket}@{account}.dfs.core.windows.net/{prefix}"


def _s3a_options(where: RemoteUrl) -> dict[str, str]:
    """Return settings for Hadoop's S3A from the URL. S3A looks for the others as AWS tools do."""
    options = {}
    for setting, option in (("endpoint", "fs.s3a.endpoint"), ("region", "fs.s3a.endpoint.region")):
        if setting in where.settings:
            options[option] = where.settings[setting]
    if where.settings.get("endpoint", "").startswith("http://"):
        options["fs.s3a.connection.ssl.enabled"] = "false"
    if where.settings.get("virtual_hosted_style_request", "false") != "true" and "endpoint" in where.settings:
        options["fs.s3a.path.style.access"] = "true"
    secrets = {
        "access_key_id": "fs.s3a.access.key",
        "secret_access_key": "fs.s3a.secret.key",
        "session_token": "fs.s3a.session.token",
    }
    options |= {secrets[name]: value for name, value in where.secrets.items() if name in secrets}
    if "session_token" in where.secrets:
        options["fs.s3a.aws.credentials.provider"] = (
            "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider"
        )
    return options


def _uri_quoted(path: str) -> str:
    """Quote a path as java.net.URI does. Outside ASCII, quote only blanks and control characters."""
    return "".join(quote(c, safe=_URI_PLAIN) if c.isascii() or _URI_BLANKS.match(c) else c for c in path)
