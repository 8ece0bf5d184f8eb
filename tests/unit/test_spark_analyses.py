"""Answers of Spark's analysis are kept until anything that they depend on changes."""

import pytest

from tidemill.spark import analyses
from tidemill.spark.analyses import Analyses, start_digest


def fails() -> str:
    raise AssertionError("asked again")


def stored(memory: Analyses) -> Analyses:
    """Return the memory of the next process."""
    raw = memory.encoded()
    assert raw is not None
    return Analyses(lambda: raw)


def test_an_answer_is_kept_for_the_next_process() -> None:
    memory = Analyses()
    memory.get(("types", "SELECT 1"), lambda: [("a", "int")], list[tuple[str, str]])
    later = stored(memory)
    assert later.get(("types", "SELECT 1"), list, list[tuple[str, str]]) == [("a", "int")]
    assert later.encoded() is None, "nothing is new"


def test_an_error_is_not_kept() -> None:
    memory = Analyses()
    with pytest.raises(AssertionError):
        memory.get("question", fails, str)
    assert memory.encoded() is None
    assert memory.get("question", lambda: "answer", str) == "answer"


def test_another_release_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Analyses()
    memory.get("question", lambda: "of this release", str)
    later = stored(memory)
    monkeypatch.setattr(analyses, "release_digest", lambda: b"the next release")
    assert later.get("question", lambda: "of the next", str) == "of the next"


def test_a_row_that_gets_too_long_loses_its_oldest_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyses, "MOST_BYTES", 1000)
    memory = Analyses()
    for number in range(50):
        memory.get(number, lambda: "x" * 30, str)
    memory.get(0, fails, str)  # used again, so it is not the oldest
    later = stored(memory)
    assert later.get(0, fails, str)
    assert later.get(49, fails, str)
    assert later.get(1, lambda: "asked again", str) == "asked again"


def test_settings_are_known_for_a_spark_that_is_started_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("conf")
    monkeypatch.setenv("SPARK_CONF_DIR", str(folder))
    start = start_digest({"a": "1"}, "local[*]")
    assert start is not None
    memory = Analyses()
    memory.keep_engine(start, "4.1.0", {"spark.sql.x": "1"})
    assert stored(memory).engine(start) == ("4.1.0", {"spark.sql.x": "1"})
    others = [start_digest({"a": "2"}, "local[*]"), start_digest({"a": "1"}, "local[2]")]
    (folder / "spark-defaults.conf").write_text("spark.sql.x 2\n")
    others.append(start_digest({"a": "1"}, "local[*]"))
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "/elsewhere")
    others.append(start_digest({"a": "1"}, "local[*]"))
    assert len({start, *others}) == 5
