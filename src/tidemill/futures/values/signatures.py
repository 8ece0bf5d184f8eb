"""The cluster key, and what is signed with it (FUT-59).

Whoever can write to the store or the objects could otherwise make every worker run what they like: a pickle
is a program. So nothing is unpickled before its signature was checked, neither code nor arguments, results
or exceptions; and signing needs the cluster key, which is in neither of the two.

A signature is keyed BLAKE2b over a domain and length-prefixed parts: what was signed as one thing never
passes for another, and no two lists of parts are signed alike. A result is bound to its future and the
version, so that a genuine one cannot be put under another future. The key is never shown: not in a repr, a
log, an error or a pickle.

Not protected: whoever holds the key, or this user's account on this machine, is the cluster. An old spec
can be written back by someone who may write to the store; it runs again what was submitted once.
"""

import contextlib
import hmac
import os
import random
import re
import stat
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NoReturn

import msgspec

from tidemill.errors import BadSignature, ClusterKeyMissing, ClusterKeyUnsafe, UsageError
from tidemill.futures.protocol.rows import Spec

ENVIRONMENT = "TIDEMILL_CLUSTER_KEY"
ENVIRONMENT_FILE = "TIDEMILL_CLUSTER_KEY_FILE"
FILE_NAME = "cluster.key"
KEY_BYTES = 32
SIGNATURE_BYTES = 32

_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}){32,}")
_MOST_FILE_BYTES = 4096


class ClusterKey:
    """The secret that the nodes and clients of one cluster share."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) < KEY_BYTES:
            raise ClusterKeyUnsafe(f"a cluster key has at least {KEY_BYTES} bytes, this one {len(secret)}")
        # BLAKE2b takes at most 64 bytes of key; a longer secret keeps all of its chance
        self._secret = secret if len(secret) <= 64 else blake2b(secret).digest()

    @classmethod
    def new(cls) -> "ClusterKey":
        """A new key, from the operating system's source: never from a seed, or it could be guessed."""
        return cls(random.SystemRandom().randbytes(KEY_BYTES))

    @property
    def secret(self) -> bytes:
        """The key itself: for a pipe to a process of ours and for the key file, and nowhere else."""
        return self._secret

    def __repr__(self) -> str:
        return "<ClusterKey>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "the cluster key cannot be pickled", hint="give the other process its file or environment"
        )


def home_key(home: Path) -> ClusterKey:
    """The key of a home: read, or made with it (mode 0600).

    Safe with any number of first callers: the file is written under another name and linked, so that it
    appears whole, once, and everyone reads the same key.
    """
    path = home / FILE_NAME
    for _ in range(2):
        try:
            return read_key(path)
        except ClusterKeyMissing:
            _make(path)
    return read_key(path)


def given_key(environ: Mapping[str, str], *, file: Path | None = None) -> ClusterKey:
    """The key for a store that is not a home: from a file, or from the environment.

    Args:
        environ: `os.environ`; `TIDEMILL_CLUSTER_KEY` holds the key, `TIDEMILL_CLUSTER_KEY_FILE` its file.
        file: the key's file; goes before the environment.
    """
    if file is not None:
        return read_key(file)
    if text := environ.get(ENVIRONMENT, "").strip():
        return _parsed(text.encode(errors="replace"), f"the environment's {ENVIRONMENT}")
    if name := environ.get(ENVIRONMENT_FILE, "").strip():
        return read_key(Path(name))
    raise ClusterKeyMissing("this store needs a cluster key and none was given")


def read_key(path: Path) -> ClusterKey:
    """The key in a file that nobody but its owner can read; `ClusterKeyUnsafe` otherwise."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ClusterKeyMissing(f"there is no cluster key at {path}") from None
    except OSError as error:
        raise ClusterKeyUnsafe(f"the cluster key at {path} cannot be read: {error.strerror}") from None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ClusterKeyUnsafe(f"the cluster key at {path} is not a file")
        if found.st_mode & 0o077:
            raise ClusterKeyUnsafe(
                f"others can read the cluster key at {path}: its mode is {stat.S_IMODE(found.st_mode):04o}",
                hint=f"if nobody has read it: chmod 600 {path}; else make a new key",
            )
        if found.st_uid not in (os.geteuid(), 0):
            raise ClusterKeyUnsafe(f"the cluster key at {path} belongs to another user")
        return _parsed(os.read(fd, _MOST_FILE_BYTES), f"the file {path}")
    finally:
        os.close(fd)


def _parsed(text: bytes, where: str) -> ClusterKey:
    text = text.strip()
    if not _HEX.fullmatch(text):
        raise ClusterKeyUnsafe(f"{where} holds no cluster key")  # what it holds instead may be a secret too
    return ClusterKey(bytes.fromhex(text.decode()))


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{random.SystemRandom().getrandbits(64):016x}")
    fd = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(ClusterKey.new().secret.hex().encode() + b"\n")
            file.flush()
            os.fsync(fd)
        with contextlib.suppress(FileExistsError):  # somebody was quicker: theirs is the key
            path.hardlink_to(draft)
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Signer:
    """Signs and checks with one key. Safe to share between threads.

    >>> signer = Signer(ClusterKey(b"0123456789abcdef0123456789abcdef"))
    >>> signature = signer.sign("code", b"print(1)")
    >>> signer.check("code", signature, b"print(1)")
    >>> signer.check("code", signature, b"print(2)")
    Traceback (most recent call last):
    tidemill.errors.BadSignature: this code was not signed with this cluster's key
    hint: use the same cluster key on every node and client
    """

    __slots__ = ("_key",)

    def __init__(self, key: ClusterKey) -> None:
        self._key = key

    def __repr__(self) -> str:
        return "<Signer>"

    def __reduce__(self) -> NoReturn:
        raise UsageError("a signer cannot be pickled", hint="make one from the key of that process")

    @property
    def key(self) -> ClusterKey:
        return self._key

    def sign(self, domain: str, *parts: bytes | memoryview) -> bytes:
        """The signature of these parts as a thing of this domain."""
        name = domain.encode()
        state = blake2b(key=self._key.secret, digest_size=SIGNATURE_BYTES, person=b"tidemill-1")
        state.update(len(name).to_bytes(8, "big") + name + len(parts).to_bytes(8, "big"))
        for part in parts:
            size = part.nbytes if isinstance(part, memoryview) else len(part)
            state.update(size.to_bytes(8, "big"))
            state.update(part)
        return state.digest()

    def check(self, domain: str, signature: bytes, *parts: bytes | memoryview) -> None:
        """Return if the signature is genuine, else raise `BadSignature`; in constant time."""
        if not hmac.compare_digest(self.sign(domain, *parts), signature):
            raise BadSignature(f"this {domain} was not signed with this cluster's key")


_signed = msgspec.msgpack.Encoder().encode


def _spec_parts(spec: Spec) -> bytes:
    """What decides what runs. Named one by one: a release that adds a field still signs the same."""
    args = spec.args
    return _signed(
        (
            spec.id,
            spec.name,
            spec.code,
            (args.inline is not None, args.inline or b"", args.digest, args.size),
            spec.inputs,
            spec.actor,
            spec.ordinal,
            spec.parent,
            spec.python,
        )
    )


def sign_spec(signer: Signer, spec: Spec) -> Spec:
    """The spec with its signature: the last thing done to it before it is submitted."""
    return msgspec.structs.replace(spec, signature=signer.sign("spec", _spec_parts(spec)))


def check_spec(signer: Signer, spec: Spec) -> None:
    """Return if whoever submitted this had the key, else raise `BadSignature`."""
    signer.check("spec", spec.signature, _spec_parts(spec))
