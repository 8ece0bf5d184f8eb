"""Lines that may not fit into memory are found before Spark reads their files again."""

import bz2
import gzip
import io
from collections.abc import Callable

import pytest

from tidemill.spark.ingest import foreign_files
from tidemill.spark.ingest.foreign_files import ForeignFile, with_long_lines

MOST = 3 << 20


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_files, "MOST_LINE_BYTES", MOST)


def reasons(files: dict[str, bytes]) -> dict[str, str]:
    listed = [ForeignFile(path, f"file:/{path}", len(body)) for path, body in files.items()]
    return with_long_lines(listed, lambda path: io.BytesIO(files[path]))


@pytest.mark.parametrize(
    ("ending", "compress"),
    [("", bytes), (".gz", lambda body: gzip.compress(body, 1)), (".bz2", bz2.compress)],
)
def test_a_file_with_a_long_line_is_found_with_its_line(
    ending: str, compress: Callable[[bytes], bytes]
) -> None:
    long = b'{"id": 1}\n' * 5 + b"x" * (MOST + 1) + b"\n" + b"y\n"
    fine = (b"z" * (MOST - 1) + b"\n") * 3 + b"z" * (MOST - 1)
    unread = reasons({f"a.json{ending}": compress(long), f"b.json{ending}": compress(fine)})
    assert unread == {f"a.json{ending}": "line 6 has more than 3,145,728 bytes, and may not fit into memory"}


def test_lines_may_end_with_a_carriage_return_and_the_last_one_with_nothing() -> None:
    assert reasons({"a.json": (b"x" * (MOST - 5) + b"\r") * 3}) == {}
    assert reasons({"a.json": b"x\n" + b"x" * (MOST + 1)}).keys() == {"a.json"}


def test_files_that_are_empty_or_broken_are_left_to_the_reader() -> None:
    body = gzip.compress(b"x" * 1000)
    assert reasons({"a.json": b"", "b.json.gz": body[:20], "c.json.zst": b"x" * (MOST + 1)}) == {}
