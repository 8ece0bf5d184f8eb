"""Objects as Spark sees them: a key, the URI Spark reads or writes, the path Spark reports, and back.

Three spellings of one object, and each is exact for every name there can be (`=`, `%`, blanks, quotes, any
script):

    key         data/name=D/…/by.city=New York/part-0.parquet        ours, in manifests
    uri         file:///base/data/name=D/…/by.city=New York/part-0…  handed to Spark: not encoded, except
                                                                     that characters of patterns are escaped
    file_path   file:/base/data/name=D/…/by.city=New%20York/part-0…  `_metadata.file_path`, a java.net.URI

Spark reaches objects by its own means (Hadoop's file systems). Credentials that are in the URL of the objects
are handed to it as options of each read and write: never in a session's settings, in an argument of a process
or in a log; Spark blots out such options where it shows a plan.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from tidemill.errors import UsageError
from tidemill.objects import Objects
from tidemill.objects.disk import Folders, sync_file
from tidemill.objects.local import LocalObjects
from tidemill.objects.url import RemoteUrl

_GLOB: Final = re.compile(r"[\\\[\]{}*?]")
# What java.net.URI leaves alone in a path, beside letters and digits; and blanks it does quote beyond ASCII.
_URI_PLAIN: Final = "_-!.~'()*:@&=+$,;/"
_URI_BLANKS: Final = re.compile("[\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
_WRITING: Final[Mapping[str, str]] = {
    # A manifest says what there is: no marker object, and no file of a task that did not commit.
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
}
_WRITING_FILES: Final[Mapping[str, str]] = {
    # Without these a checksum file lies beside every file, which no manifest lists.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


class Storage:
    """Where the objects of a cluster are, for Spark.

    Args:
        objects: the opened object storage; a folder, or a bucket that Spark has the connector for.
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
                    f"Spark cannot reach {objects.url}",
                    hint="keep objects in a folder or a bucket; memory:// is for this process alone",
                )
            self._root = self._reported = _remote_root(where)
            self._options = _s3a_options(where) if where.kind == "s3" else {}

    def __repr__(self) -> str:
        return f"<Storage {self.objects.url}>"

    @property
    def local(self) -> bool:
        """Whether these are files, which every machine that runs Spark must see under the same path."""
        return self._root_path is not None

    # --- spellings

    def uri(self, key: str) -> str:
        """What Spark writes to."""
        return self._root + key

    def read_uri(self, key: str) -> str:
        """What Spark reads: as `uri`, but taken literally where Spark would take it for a pattern."""
        return _GLOB.sub(r"\\\g<0>", self._root + key)

    def file_path(self, key: str) -> str:
        """What Spark says it has read: `_metadata.file_path`."""
        scheme, colon, path = (self._reported + key).partition(":")
        return scheme + colon + _uri_quoted(path)

    def key(self, file_path: str) -> str:
        """The key of what Spark says it has read; `UsageError` when it is not of these objects.

        Spark writes `file:/a`, and in some messages `file:///a`.
        """
        path = re.sub(r"^file:/{2,}", "file:/", unquote(file_path))
        if not path.startswith(self._reported):
            raise UsageError(
                f"{file_path} is not below {self.objects.url}", hint="only objects of lots have a key"
            )
        return path.removeprefix(self._reported)

    # --- settings

    def read_options(self) -> dict[str, str]:
        """Options of each read."""
        return dict(self._options)

    def write_options(self) -> dict[str, str]:
        """Options of each write."""
        return {**self._options, **_WRITING, **(_WRITING_FILES if self.local else {})}

    # --- durability

    def sync(self, keys: Iterable[str]) -> None:
        """Return when what Spark wrote under these keys would survive a power failure.

        Spark closes files and leaves them to the kernel. A bucket's answer is durable as it is.
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
                    f"no account in {where.shown}", hint="write az://container/prefix?account=NAME for Spark"
                )
            return f"abfss://{where.bucket}@{account}.dfs.core.windows.net/{prefix}"


def _s3a_options(where: RemoteUrl) -> dict[str, str]:
    """The settings of Hadoop's S3A that say what the URL says; the rest S3A finds as AWS tools do."""
    options = {}
    for ours, theirs in (("endpoint", "fs.s3a.endpoint"), ("region", "fs.s3a.endpoint.region")):
        if ours in where.settings:
            options[theirs] = where.settings[ours]
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
    """A path as java.net.URI writes it: beyond ASCII only blanks and controls are encoded."""
    return "".join(quote(c, safe=_URI_PLAIN) if c.isascii() or _URI_BLANKS.match(c) else c for c in path)
