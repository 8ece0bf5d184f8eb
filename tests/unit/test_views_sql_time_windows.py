"""Which uses of time windows become operators, and which stay SQL text."""

import pytest

from tidemill.errors import QueryRefused
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import Aggregate, Generate, SparkColumn
from tidemill.views.circuit.rungs import Rung, rungs
from tidemill.views.circuit.sessions import session_form
from tidemill.views.sql.catalog import QueryTable
from tidemill.views.sql.compiler import compile_query

COLUMNS = {"id": "int", "k": "int", "ts": "timestamp", "window": "int"}
TABLES = {
    "t": QueryTable("t", tuple(SparkColumn(name, kind) for name, kind in list(COLUMNS.items())[:3])),
    "named": QueryTable("named", tuple(SparkColumn(name, kind) for name, kind in COLUMNS.items())),
}
SESSION = "session_window(ts, '5 minutes')"


@pytest.mark.rule("DBSP-10")
@pytest.mark.parametrize(
    "query",
    [
        "SELECT window(ts, '1 hour') AS w, count(*) AS n FROM t GROUP BY window(ts, '1 hour')",
        "SELECT window.start AS s, count(*) AS n FROM t GROUP BY k, window (ts, '1 hour')",
        "SELECT k, max(window(ts, '1 hour').end) AS w FROM t GROUP BY k",
        "SELECT id, window(ts, '10 minutes', '5 minutes').start AS w FROM t",
    ],
)
def test_a_time_window_is_an_operator(query: str) -> None:
    (generate,) = (op for op in walk(compile_query(query, TABLES).output) if isinstance(op, Generate))
    assert generate.call.is_time_window


def test_a_column_with_the_name_window_keeps_its_name() -> None:
    query = "SELECT window AS v, window(ts, '1 hour') AS w FROM named"
    output = compile_query(query, TABLES).output
    (generate,) = (op for op in walk(output) if isinstance(op, Generate))
    assert output.input.expressions[0].column == 3  # type: ignore[attr-defined]
    assert output.input.expressions[1].column == generate.input.width  # type: ignore[attr-defined]


@pytest.mark.rule("DBSP-17")
def test_a_session_window_is_a_key_of_its_group() -> None:
    query = f"SELECT k, {SESSION}.start AS s, count(*) AS n FROM t GROUP BY k, {SESSION}"
    (aggregate,) = (op for op in walk(compile_query(query, TABLES).output) if isinstance(op, Aggregate))
    assert [key.is_session_window for key in aggregate.groups] == [False, True]
    assert rungs(aggregate)[aggregate].rung is Rung.NATIVE


@pytest.mark.parametrize(
    ("gap", "seconds"),
    [
        ("'10 minutes'", 600),
        ("'1 hour 30 SECONDS'", 3630),
        ("'90 minute'", 5400),
        ("'500 milliseconds'", 0.5),
        ("'1 day'", None),
        ("'0 seconds'", None),
        ("'1 month'", None),
        ("'1.5 hours'", None),
        ("'10'", None),
        ("INTERVAL 5 MINUTES", None),
    ],
)
@pytest.mark.rule("DBSP-17")
def test_a_session_window_with_a_gap_of_fixed_length_has_a_kernel(gap: str, seconds: float | None) -> None:
    query = f"SELECT k, count(*) AS n FROM t GROUP BY k, session_window(ts, {gap})"
    (aggregate,) = (op for op in walk(compile_query(query, TABLES).output) if isinstance(op, Aggregate))
    form = session_form(aggregate.input, aggregate.groups[1])
    assert (form and form.gap_us) == (None if seconds is None else int(seconds * 1_000_000))
    assert rungs(aggregate)[aggregate].rung is (Rung.KEYED if form is None else Rung.NATIVE)


@pytest.mark.rule("DBSP-17")
@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT count(*) AS n FROM t GROUP BY session_window(ts, '1 day')", "without another key"),
        ("SELECT count(*) AS n FROM t GROUP BY session_window(ts, '-1 hour')", "without another key"),
        ("SELECT count(*) AS n FROM t GROUP BY session_window(ts, k || ' hours')", "without another key"),
        (f"SELECT k, count(*) AS n FROM t GROUP BY ROLLUP (k, {SESSION})", "session_window"),
        (f"SELECT k, {SESSION} AS w, count(*) AS n FROM t GROUP BY k, 2", "session_window"),
        (f"SELECT k, max({SESSION}.end) AS m FROM t GROUP BY k, {SESSION}", "inside an aggregate"),
        (f"SELECT k, count(*) AS n FROM t GROUP BY k, {SESSION}.start", "inside a key"),
        ("SELECT id FROM t WHERE window(ts, '1 hour').start > now()", "unsupported place"),
        ("SELECT window(ts, '1 hour') AS a, window(ts, '2 hours') AS b FROM t", "several time windows"),
        ("SELECT window_time(w) AS x FROM (SELECT window(ts, '1 hour') AS w FROM t)", "window_time"),
    ],
)
def test_other_uses_of_time_windows_stay_text(query: str, reason: str) -> None:
    with pytest.raises(QueryRefused, match=reason):
        compile_query(query, TABLES)
