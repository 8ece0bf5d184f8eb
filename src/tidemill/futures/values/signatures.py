"""The cluster key, and the signatures made with it (FUT-59).

A pickle is a program. Without signatures, anyone who can write to the store or the objects could make every
worker run their code. So code, arguments, results and exceptions are unpickled only after their signatures
have been checked. Signing needs the cluster key, which is stored neither in the store nor in the objects.

A signature is a keyed BLAKE2b hash of a domain and length-prefixed parts. So a signature is valid only for
one kind of data, and no two lists of parts have the same signature. A result is bound to its future and
version, so it cannot be moved to another future. The key never appears in a repr, a log, an error or a
pickle.

Signatures do not protect against anyone who has the key, or access to this user's account on this machine. An
attacker who can write to the store can also write an old spec to it again. Then an earlier call runs again.
"""

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
_NOT_OWNER = "run as the owner of the file, or use a key file that you own"


class ClusterKey:
    """The secret that the nodes and clients of one cluster share."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) < KEY_BYTES:
            raise ClusterKeyUnsafe(f"the cluster key has {len(secret)} bytes; it needs at least {KEY_BYTES}")
        # BLAKE2b accepts at most 64 bytes of key; hashing a longer secret keeps its entropy
        self._secret = secret if len(secret) <= 64 else blake2b(secret).digest()

    @classmethod
    def new(cls) -> "ClusterKey":
        """Create a key from the operating system's random source. A seeded source could be guessed."""
        return cls(random.SystemRandom().randbytes(KEY_BYTES))

    @property
    def secret(self) -> bytes:
        """The key itself. Use it only for a pipe to a child process and for the key file."""
        return self._secret

    def __repr__(self) -> str:
        return "<ClusterKey>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "the cluster key cannot be pickled",
            hint="pass the key file or the environment variable to the other process",
        )


def home_key(home: Path) -> ClusterKey:
    """Read the key of a home, or create it (mode 0600).

    Several processes may call this at the same time: the file is written under another name and then linked.
    So only one complete file appears, and all processes read the same key.
    """
    path = home / FILE_NAME
    for _ in range(2):
        try:
            return read_key(path)
        except ClusterKeyMissing:
            create_key(path)
    return read_key(path)


def given_key(environ: Mapping[str, str], *, file: Path | None = None) -> ClusterKey:
    """Read the key for a store without a home, from a file or from the environment.

    Args:
        environ: `os.environ`. `TIDEMILL_CLUSTER_KEY` contains the key, or `TIDEMILL_CLUSTER_KEY_FILE` the
            path of the key file.
        file: the path of the key file; it takes precedence over the environment.
    """
    if file is not None:
        return read_key(file)
    if text := environ.get(ENVIRONMENT, "").strip():
        return _parsed(text.encode(errors="replace"), f"the environment variable {ENVIRONMENT}")
    if name := environ.get(ENVIRONMENT_FILE, "").strip():
        return read_key(Path(name))
    raise ClusterKeyMissing("this store needs a cluster key, but none was provided")


def read_key(path: Path) -> ClusterKey:
    """Read the key from a file. Raise `ClusterKeyUnsafe` if other users can read the file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ClusterKeyMissing(f"there is no cluster key at {path}") from None
    except OSError as error:
        raise ClusterKeyUnsafe(
            f"the cluster key at {path} cannot be read: {error.strerror}", hint=_NOT_OWNER
        ) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ClusterKeyUnsafe(f"the cluster key at {path} is not a file", hint="use the path of a file")
        if status.st_mode & 0o077:
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            raise ClusterKeyUnsafe(
                f"other users can read the cluster key at {path}: its mode is {mode}",
                hint=f"run chmod 600 {path}; if another user may have read the key, create a new one",
            )
        if status.st_uid not in (os.geteuid(), 0):
            raise ClusterKeyUnsafe(f"the cluster key at {path} belongs to another user", hint=_NOT_OWNER)
        return _parsed(os.read(fd, _MOST_FILE_BYTES), f"the file {path}")
    finally:
        os.close(fd)


def _parsed(text: bytes, where: str) -> ClusterKey:
    text = text.strip()
    if not _HEX.fullmatch(text):
        raise ClusterKeyUnsafe(f"{where} does not contain a cluster key")  # its content may be another secret
    return ClusterKey(bytes.fromhex(text.decode()))


def create_key(path: Path, key: ClusterKey | None = None) -> bool:
    """Write a key to a file (mode 0600); a new one by default.

    Return False, and change nothing, if the file exists.

    A process that is killed leaves either no file or a complete one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}-{random.SystemRandom().getrandbits(64):016x}")
    fd = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write((key or ClusterKey.new()).secret.hex().encode() + b"\n")
            file.flush()
            os.fsync(fd)
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            return False
    finally:
        draft.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True


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
        raise UsageError(
            "a signer cannot be pickled", hint="create a signer in the other process, from the cluster key"
        )

    @property
    def key(self) -> ClusterKey:
        return self._key

    def sign(self, domain: str, *parts: bytes | memoryview) -> bytes:
        """Return the signature of these parts in this domain."""
        name = domain.encode()
        state = blake2b(key=self._key.secret, digest_size=SIGNATURE_BYTES, person=b"tidemill-1")
        state.update(len(name).to_bytes(8, "big") + name + len(parts).to_bytes(8, "big"))
        for part in parts:
            size = part.nbytes if isinstance(part, memoryview) else len(part)
            state.update(size.to_bytes(8, "big"))
            state.update(part)
        return state.digest()

    def check(self, domain: str, signature: bytes, *parts: bytes | memoryview) -> None:
        """Raise `BadSignature` if the signature is not valid. Takes constant time."""
        if not hmac.compare_digest(self.sign(domain, *parts), signature):
            raise BadSignature(f"this {domain} was not signed with this cluster's key")


_signed = msgspec.msgpack.Encoder().encode


def _spec_parts(spec: Spec) -> bytes:
    """Return the signed fields of a spec.

    They are listed one by one, so that adding a field to specs does not change existing signatures.
    """
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
    """Return the spec with its signature. Call this last, before the spec is submitted."""
    return msgspec.structs.replace(spec, signature=signer.sign("spec", _spec_parts(spec)))


def check_spec(signer: Signer, spec: Spec) -> None:
    """Raise `BadSignature` if the spec was not signed with the key."""
    signer.check("spec", spec.signature, _spec_parts(spec))
