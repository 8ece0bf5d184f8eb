import os
import pickle
import stat
import threading
from pathlib import Path

import cloudpickle
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.errors import BadSignature, ClusterKeyMissing, ClusterKeyUnsafe, UsageError
from tidemill.futures.protocol.rows import Blob, Spec
from tidemill.futures.values.signatures import (
    ENVIRONMENT,
    ENVIRONMENT_FILE,
    FILE_NAME,
    ClusterKey,
    Signer,
    check_spec,
    given_key,
    home_key,
    sign_spec,
)

SECRET = b"0123456789abcdef0123456789ABCDEF"
SIGNER = Signer(ClusterKey(SECRET))
SPEC = Spec(
    id=b"i" * 16, name="f", code=b"c" * 32, args=Blob(b"args", size=4), inputs=(b"u" * 16,), python="3.11"
)


def test_a_home_gets_a_key_once_that_only_its_owner_can_read(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    key = home_key(home)
    assert home_key(home).secret == key.secret
    assert stat.S_IMODE((home / FILE_NAME).stat().st_mode) == 0o600
    assert [path.name for path in home.iterdir()] == [FILE_NAME], "no draft is left"
    assert home_key(tmp_path / "other").secret != key.secret


def test_all_who_make_a_home_at_once_have_one_key(tmp_path: Path) -> None:
    secrets: list[bytes] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        secrets.append(home_key(tmp_path).secret)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(secrets) == 8
    assert len(set(secrets)) == 1


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    secret = home_key(tmp_path).secret.hex()
    (tmp_path / FILE_NAME).chmod(mode)
    with pytest.raises(ClusterKeyUnsafe, match=f"{mode:04o}") as caught:
        home_key(tmp_path)
    assert secret not in str(caught.value)
    with pytest.raises(ClusterKeyUnsafe):
        given_key({}, file=tmp_path / FILE_NAME)


@pytest.mark.parametrize("text", ["", "x" * 64, "ab" * 31, "ab" * 32 + "c", "{}", "ab " * 32, "ä" * 64])
def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / FILE_NAME
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ClusterKeyUnsafe) as caught:
        home_key(tmp_path)
    assert not text or text not in str(caught.value)
    if text:
        with pytest.raises(ClusterKeyUnsafe) as caught:
            given_key({ENVIRONMENT: text})
        assert text not in str(caught.value)


def test_a_key_is_a_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(ClusterKeyUnsafe):
        home_key(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ClusterKeyUnsafe, match="not a file"):  # and nobody waits for a writer
        given_key({}, file=tmp_path / "pipe")


@pytest.mark.rule("FUT-59")
def test_any_other_store_needs_a_key_that_is_given(tmp_path: Path) -> None:
    with pytest.raises(ClusterKeyMissing) as caught:
        given_key({})
    assert ENVIRONMENT in caught.value.hint
    with pytest.raises(ClusterKeyMissing):
        given_key({ENVIRONMENT: " ", ENVIRONMENT_FILE: ""})
    with pytest.raises(ClusterKeyMissing):
        given_key({ENVIRONMENT_FILE: str(tmp_path / "none")})
    path = tmp_path / "key"
    path.write_text(SECRET.hex() + "\n")
    path.chmod(0o400)
    assert given_key({ENVIRONMENT: f" {SECRET.hex()}\n"}).secret == SECRET
    assert given_key({ENVIRONMENT_FILE: str(path)}).secret == SECRET
    assert given_key({ENVIRONMENT: "ab" * 32}, file=path).secret == SECRET


def test_the_key_is_never_shown() -> None:
    key = ClusterKey(SECRET)
    for thing in (key, Signer(key)):
        shown = f"{thing!r} {thing} {[thing]}"
        assert SECRET.decode() not in shown
        assert SECRET.hex() not in shown
        for dumps in (pickle.dumps, cloudpickle.dumps):
            with pytest.raises(UsageError, match="pickled"):
                dumps(thing)
    with pytest.raises(ClusterKeyUnsafe) as caught:
        ClusterKey(b"short secret")
    assert "short secret" not in str(caught.value)


@given(st.lists(st.binary(max_size=8), max_size=4), st.lists(st.binary(max_size=8), max_size=4))
def test_no_two_lists_of_parts_have_one_signature(parts: list[bytes], other: list[bytes]) -> None:
    assert (SIGNER.sign("code", *parts) == SIGNER.sign("code", *other)) == (parts == other)
    assert SIGNER.sign("code", *parts) != SIGNER.sign("spec", *parts)
    assert SIGNER.sign("code", *parts) != Signer(ClusterKey.new()).sign("code", *parts)


def test_a_view_is_signed_like_its_bytes() -> None:
    view = memoryview(b"abcdefgh").cast("H")
    assert SIGNER.sign("x", view) == SIGNER.sign("x", b"abcdefgh")


@pytest.mark.parametrize(
    "bad", [b"", b"x", bytes(32), SIGNER.sign("code", b"b"), SIGNER.sign("code", b"a")[:-1]]
)
def test_what_is_not_signed_is_told(bad: bytes) -> None:
    SIGNER.check("code", SIGNER.sign("code", b"a"), b"a")
    with pytest.raises(BadSignature, match="this code was not signed"):
        SIGNER.check("code", bad, b"a")


def test_a_long_secret_counts_whole() -> None:
    first, second = Signer(ClusterKey(bytes(100) + b"1")), Signer(ClusterKey(bytes(100) + b"2"))
    assert first.sign("x") != second.sign("x")


@pytest.mark.rule("FUT-59")
@pytest.mark.parametrize(
    "change",
    [
        {"id": b"j" * 16},
        {"name": "g"},
        {"code": b"d" * 32},
        {"args": Blob(b"argz", size=4)},
        {"args": Blob(None, b"args", 4)},
        {"inputs": ()},
        {"actor": b"a" * 16},
        {"ordinal": 1},
        {"parent": b"p" * 16},
        {"python": "3.12"},
        {"signature": b""},
    ],
)
def test_a_spec_that_was_changed_is_refused(change: dict[str, object]) -> None:
    signed = sign_spec(SIGNER, SPEC)
    check_spec(SIGNER, signed)
    with pytest.raises(BadSignature):
        check_spec(SIGNER, msgspec.structs.replace(signed, **change))
    with pytest.raises(BadSignature):
        check_spec(Signer(ClusterKey.new()), signed)


def test_what_the_store_adds_to_a_spec_leaves_its_signature_valid() -> None:
    signed = sign_spec(SIGNER, SPEC)
    check_spec(SIGNER, msgspec.structs.replace(signed, submitted_at=7, reconstruct=False))
