"""Texts that no store, file system or terminal can hold, and nesting without end: refused with a hint."""

from pathlib import Path

import pytest

import tidemill as tm
from tidemill.clock import SYSTEM
from tidemill.errors import (
    BadName,
    BadSchema,
    BadUrl,
    DeclarationError,
    QuerySyntax,
    TidemillError,
    UsageError,
)
from tidemill.lots import layout
from tidemill.objects import open_objects
from tidemill.paths import expanded
from tidemill.schemas import ddl
from tidemill.store import open_store
from tidemill.store.keys import pack
from tidemill.views.circuit.operators import Opaque, SparkColumn
from tidemill.views.sql.compiler import compile_query

HALF = "half \ud800"  # one half of a surrogate pair, which UTF-8 cannot encode


def test_every_message_and_hint_can_be_printed() -> None:
    error = TidemillError(f"no table {HALF}", hint=f"did you mean é {HALF}?")
    assert str(error).encode() == "no table half \\ud800\nhint: did you mean é half \\ud800?".encode()
    assert error.args == (error.message,)


def test_a_name_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(BadName, match="not valid Unicode"):
        layout.quote(HALF)
    with pytest.raises(UsageError, match="not valid Unicode"):
        pack(("dataset", HALF))
    with pytest.raises(DeclarationError, match="not valid Unicode"):
        tm.Pipeline("shop", home="home").dataset(HALF, "id BIGINT")


@pytest.mark.parametrize("path", [HALF, "a\0b", "~no-such-user-anywhere/home"])
def test_a_path_that_no_file_system_has_is_refused(path: str) -> None:
    with pytest.raises(BadUrl) as error:
        expanded(path)
    assert error.value.hint
    for refused in (
        lambda: tm.Pipeline("shop", home=path),
        lambda: open_store(path),
        lambda: open_objects(path, clock=SYSTEM),
    ):
        with pytest.raises(BadUrl):
            refused()


def test_a_file_url_with_brackets_is_refused() -> None:
    with pytest.raises(BadUrl, match="not a file URL"):
        open_objects("file://[x/path", clock=SYSTEM)


def test_the_home_folder_of_the_user_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/shop") == tmp_path / "shop"
    assert expanded(tmp_path) == tmp_path


@pytest.mark.parametrize(
    "schema",
    [
        "id " + "ARRAY<" * 3000 + "INT" + ">" * 3000,
        "id " + "STRUCT<a:" * 500,
        "id DECIMAL(" + "9" * 5000 + ",1)",
    ],
)
def test_a_schema_that_is_too_deep_or_too_long_is_refused(schema: str) -> None:
    with pytest.raises(BadSchema):
        ddl.parse(schema)
    deep = "ARRAY<" * 99 + "INT" + ">" * 99
    assert str(ddl.parse(f"id {deep}, other {deep}")).count("array") == 198


def test_a_duration_of_any_size_is_refused() -> None:
    with pytest.raises(DeclarationError, match="cadence"):
        tm.Pace(cadence=10**400)


@pytest.mark.parametrize(
    "sql", ["(" * 2000, "SELECT " + "(" * 2000 + "1" + ")" * 2000, "SELECT " + "1 + " * 5000 + "1 AS n"]
)
def test_a_query_that_is_too_deep_is_refused_or_recomputed(sql: str) -> None:
    with pytest.raises(TidemillError, match="nested too deeply"):
        compile_query(sql, {})
    compiled = compile_query(sql, {}, lambda *_: [SparkColumn("n", "int")])
    assert isinstance(compiled.output.input, Opaque)
    (note,) = compiled.notes
    assert note.startswith("recomputed as a whole: the query is nested too deeply")


def test_a_query_that_is_too_deep_names_no_bug() -> None:
    with pytest.raises(QuerySyntax) as error:
        compile_query("(" * 2000, {})
    assert error.value.hint
