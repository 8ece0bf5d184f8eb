import random
from collections.abc import Iterator

import pytest

from tests.unit.futures_bomb import Bomb, exploded
from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.cluster.keys import ClusterKeys
from tidemill.crash import Crashed
from tidemill.errors import BadSignature, BlobMissing, CannotSerialize
from tidemill.futures.client.options import Options
from tidemill.futures.client.submission import Submission, SubmissionFactory, SubmissionWriter
from tidemill.futures.protocol import code
from tidemill.futures.protocol.keys import FutureKeys
from tidemill.futures.protocol.rows import Blob, Spec
from tidemill.futures.values import calls, pickling
from tidemill.futures.values.blobs import IN_SPEC_BYTES, IN_STORE_BYTES, Blobs, FunctionCache
from tidemill.futures.values.signatures import ClusterKey, Signer, check_spec, sign_spec
from tidemill.objects import Objects, open_objects
from tidemill.store import LIMITS, Store, open_store

SIGNER = Signer(ClusterKey(bytes(32)))
KEYS = FutureKeys("c")
ID = b"i" * 16


@pytest.fixture
def store() -> Iterator[Store]:
    with open_store("memory://", clock=SYSTEM) as store:
        yield store


@pytest.fixture
def objects() -> Objects:
    return open_objects("memory://", clock=SYSTEM)


@pytest.fixture
def blobs(store: Store, objects: Objects) -> Blobs:
    return Blobs(store, KEYS, SIGNER, objects)


def names(objects: Objects) -> list[str]:
    return [info.key for info in objects.list()]


def code_rows(store: Store) -> list[bytes]:
    return [row.key for row in store.run(lambda tx: list(tx.range(*KEYS.code.all())))]


def object_of(store: Store, digest: bytes) -> str:
    state = store.run(lambda tx: code.read(tx, KEYS, digest))
    return (state.object if state is not None else "") or f"futures/blobs/{digest.hex()}"


@pytest.mark.rule("FUT-21", "FUT-22")
@pytest.mark.parametrize("size", [1, IN_STORE_BYTES, IN_STORE_BYTES + 1, 3_000_000])
def test_code_of_any_size_is_kept_by_its_digest(
    blobs: Blobs, store: Store, objects: Objects, size: int
) -> None:
    content = bytes(size)
    digest = blobs.store_code(content)
    assert blobs.load_code(digest) == content
    assert len(code_rows(store)) == (size <= IN_STORE_BYTES)
    prefix = f"futures/blobs/{digest.hex()}/"
    assert [name.startswith(prefix) for name in names(objects)] == ([] if size <= IN_STORE_BYTES else [True])
    assert LIMITS.value_bytes > IN_STORE_BYTES
    assert blobs.store_code(content + b"x") != digest


def test_the_same_code_is_stored_once(store: Store, objects: Objects) -> None:
    commits = 0
    run = store.run

    def counted(fn: object, *args: object, **kwargs: object) -> object:
        nonlocal commits
        commits += 1
        return run(fn, *args, **kwargs)  # type: ignore[arg-type]

    store.run = counted  # type: ignore[method-assign, assignment]
    blobs = Blobs(store, KEYS, SIGNER, objects)
    digests = {blobs.store_code(b"same") for _ in range(5)}
    assert len(digests) == commits == 1
    blobs.forget(digests.pop())
    blobs.store_code(b"same")
    assert commits == 2
    assert Blobs(store, KEYS, SIGNER, objects).store_code(b"same")  # another client finds it there
    assert len(code_rows(store)) == 1


@pytest.mark.rule("FUT-34")
def test_a_call_that_is_refused_because_its_code_was_deleted_can_be_repeated(
    blobs: Blobs, store: Store
) -> None:
    """For example on a computer that slept for hours: its monotonic clock stood still."""
    writer = SubmissionWriter(store, KEYS, ClusterKeys("c"), SIGNER, blobs)
    factory = SubmissionFactory(blobs, SIGNER, "client", SYSTEM, random.Random(1))

    def submission() -> Submission:
        return factory.make(factory.code(len), ["abc"], {}, Options())

    first = submission()
    store.run(lambda tx: tx.clear(KEYS.code_state[first.spec.code]))
    store.run(lambda tx: tx.clear(KEYS.code[first.spec.code]))
    with pytest.raises(BlobMissing, match="submit the call again"):
        writer.write(first)
    again = submission()
    assert writer.write(again) == again.spec.id
    assert blobs.load_code(again.spec.code)


@pytest.mark.rule("FUT-34")
def test_code_of_an_earlier_release_is_found_after_a_client_died_before_it_stored_it_again(
    blobs: Blobs, store: Store, objects: Objects
) -> None:
    content = bytes(IN_STORE_BYTES + 1)
    digest = blobs.digest(content)
    objects.put(f"futures/blobs/{digest.hex()}", digest + content)
    assert blobs.load_code(digest) == content
    with crash.armed("futures.blob.before"), pytest.raises(Crashed):
        blobs.store_code(content)
    assert blobs.load_code(digest) == content


@pytest.mark.rule("FUT-21")
@pytest.mark.parametrize("size", [0, IN_SPEC_BYTES, IN_SPEC_BYTES + 1, 3_000_000])
def test_arguments_of_any_size_are_kept(blobs: Blobs, objects: Objects, size: int) -> None:
    content = bytes(size)
    blob = blobs.store_args(ID, content)
    spec = sign_spec(SIGNER, Spec(id=ID, name="f", code=b"", args=blob))
    check_spec(SIGNER, spec)
    assert blobs.load_args(spec) == content
    assert blob.size == size
    assert (blob.inline is None) == (size > IN_SPEC_BYTES) == bool(names(objects))
    blobs.store_args(ID, content)  # again, after a lost answer
    for name in names(objects):
        objects.delete(name)
    if size > IN_SPEC_BYTES:
        with pytest.raises(BlobMissing, match="the arguments of f"):
            blobs.load_args(spec)


def test_arguments_of_two_futures_are_two_objects(blobs: Blobs, objects: Objects) -> None:
    content = bytes(100_000)
    first = blobs.store_args(ID, content)
    second = blobs.store_args(b"j" * 16, content)
    assert first.digest != second.digest
    assert len(names(objects)) == 2


def test_without_objects_large_ones_are_refused_where_they_are_submitted(store: Store) -> None:
    blobs = Blobs(store, KEYS, SIGNER, None)
    digest = blobs.store_code(b"small")
    assert blobs.load_code(digest) == b"small"
    with pytest.raises(CannotSerialize, match="the function has 100,000 bytes"):
        blobs.store_code(bytes(100_000))
    with pytest.raises(CannotSerialize, match="the arguments have 100,000 bytes") as caught:
        blobs.store_args(ID, bytes(100_000))
    assert "put()" in caught.value.hint
    with pytest.raises(BlobMissing):
        blobs.load_code(b"d" * 32)
    with pytest.raises(BlobMissing):
        blobs.load_args(Spec(id=ID, name="f", code=b"", args=Blob(None, b"d" * 32, 9)))


def test_code_that_is_not_there_is_told(blobs: Blobs) -> None:
    with pytest.raises(BlobMissing, match="the code of this future"):
        blobs.load_code(b"d" * 32)


@pytest.mark.rule("FUT-59")
@pytest.mark.parametrize("padding", [0, 100_000])
def test_forged_code_is_never_unpickled(blobs: Blobs, store: Store, objects: Objects, padding: int) -> None:
    bomb = pickling.pack(pickling.dump(Bomb("code", padding)))
    genuine = blobs.store_code(calls.dump_code(len))
    forger = Blobs(store, KEYS, Signer(ClusterKey.new()), objects)
    for digest in (forger.store_code(bomb), genuine):
        if padding:
            objects.put(object_of(store, digest), digest + bomb)
            store.run(lambda tx, digest=digest: tx.clear(KEYS.code[digest]))
        else:
            store.run(lambda tx, digest=digest: tx.set(KEYS.code[digest], bomb))
        for content in (b"", bomb):
            with pytest.raises(BadSignature):
                FunctionCache(blobs).get(digest, content)
    assert exploded == []


@pytest.mark.rule("FUT-59")
def test_forged_arguments_are_refused(blobs: Blobs, objects: Objects) -> None:
    spec = Spec(id=ID, name="f", code=b"", args=blobs.store_args(ID, bytes(100_000)))
    (name,) = names(objects)
    for body in (b"", spec.args.digest, spec.args.digest + bytes(99_999), spec.args.digest + b"x" * 100_000):
        objects.put(name, body)
        with pytest.raises(BadSignature):
            blobs.load_args(spec)


def test_an_object_that_somebody_spoilt_is_mended_by_the_next_who_stores_it(
    blobs: Blobs, store: Store, objects: Objects
) -> None:
    content = bytes(100_000)
    digest = blobs.store_code(content)
    objects.put(object_of(store, digest), b"spoilt")
    Blobs(store, KEYS, SIGNER, objects).store_code(content)
    assert blobs.load_code(digest) == content


def test_another_key_makes_other_names(store: Store, objects: Objects) -> None:
    other = Blobs(store, KEYS, Signer(ClusterKey.new()), objects)
    mine = Blobs(store, KEYS, SIGNER, objects)
    assert other.store_code(bytes(100_000)) != mine.store_code(bytes(100_000))
    assert len(names(objects)) == 2


def test_a_worker_loads_a_function_once(blobs: Blobs, store: Store) -> None:
    functions = FunctionCache(blobs, limit=2)
    digests = [blobs.store_code(calls.dump_code(lambda n=n: n)) for n in range(3)]
    first = functions.get(digests[0])
    assert [functions.get(digest)() for digest in digests[:2]] == [0, 1]
    assert functions.get(digests[0]) is first
    functions.get(digests[2])  # now the second is the one that was not used for longest
    assert functions.get(digests[0]) is first
    content = calls.dump_code(len)
    assert functions.get(blobs.digest(content), content) is len, "it need not be stored"
