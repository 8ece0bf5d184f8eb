"""Time windows: they return several rows or none for a row, only in the view that has them."""

# ruff: noqa: E501, DTZ001  # each query is on one line with its name; some times have no zone

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.views_follow import follow
from tidemill.testing import Step
from tidemill.views.chain.keyed_operators import GatherRows
from tidemill.views.kernels import ordered_trace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATASETS = {"t": "id INT, k INT, ts TIMESTAMP", "u": "id INT, n TIMESTAMP_NTZ"}

VIEWS = {
    "hopping": "SELECT w.start AS s, count(*) AS n FROM (SELECT window(ts, '10 minutes', '5 minutes') AS w FROM t)"
    " GROUP BY w.start",
    "tumbling": "SELECT window(ts, '1 hour').start AS w, count(*) AS n, sum(id) AS s FROM t"
    " GROUP BY window(ts, '1 hour')",
    "by_name": "SELECT k, window.start AS s, window.end AS e, max(id) AS m FROM t"
    " GROUP BY k, window (ts, '10 minutes', '3 minutes', '1 minute') HAVING count(*) > 0",
    "rows": "SELECT *, window(ts, '7 minutes') AS w FROM t WHERE k > 0",
    "without_zone": "SELECT window(n, '1 hour') AS w, count(*) AS n FROM u GROUP BY ALL",
    "sessions": "SELECT k, session_window.start AS st, session_window.end AS en, count(*) AS n FROM t"
    " GROUP BY k, session_window(ts, '5 minutes')",
    "named sessions": "SELECT k + 1 AS k1, session_window(ts, '5 minutes') AS w, max(id) AS m, count(DISTINCT id) AS n FROM t GROUP BY session_window(ts, '5 minutes'), k + 1 HAVING k + 1 > 1",
    "all sessions": "SELECT session_window(ts, '5 minutes').start AS st, count(*) AS n FROM t GROUP BY session_window(ts, '5 minutes')",
    "sessions without zone": "SELECT session_window AS w, sort_array(collect_list(id)) AS ids FROM u GROUP BY session_window(n, '2 days')",
    "sessions that touch": "SELECT k, session_window(ts, '4 minutes').end AS en, avg(id) AS m, sum(DISTINCT id) AS s FROM t GROUP BY k, session_window(ts, '4 minutes')",
    "sessions of text": "SELECT k, session_window.start AS st, count(*) AS n FROM (SELECT k, CAST(ts AS TIMESTAMP) AS x, id FROM t) GROUP BY k, session_window(x, '1 hour') HAVING session_window.end > TIMESTAMP '2024-01-01 09:00:00'",
    "sessions over a join": "SELECT t.k, session_window(t.ts, '1 hour').start AS st, max(u.n) AS m FROM t JOIN u ON t.id = u.id GROUP BY t.k, session_window(t.ts, '1 hour')",
    "keyed sessions": "SELECT k, session_window(ts, CASE WHEN k = 1 THEN '5 minutes' ELSE '1 day' END) AS w, count(*) AS n FROM t GROUP BY 1, session_window(ts, CASE WHEN k = 1 THEN '5 minutes' ELSE '1 day' END)",
    "sessions of a day": "SELECT session_window(ts, '1 day').start AS st, count(*) AS n FROM t GROUP BY session_window(ts, '1 day')",
    "sums": "SELECT k + 1 AS k1, count(*) AS n, sum(id) AS s FROM t GROUP BY k + 1",
    "others": "SELECT id, k * 2 AS z FROM t WHERE k + 0 > 0",
}


def _row(number: int, key: int, *minute: int) -> dict[str, Any]:
    return {"id": number, "k": key, "ts": datetime(2024, 1, 1, *minute, tzinfo=UTC) if minute else None}


STEPS = [
    Step(
        {
            "t": [_row(1, 1, 10, 2), _row(2, 1), _row(3, 2, 11, 2), _row(4, 1, 10, 20)],
            "u": [{"id": 1, "n": datetime(2024, 3, 31, 2, 30)}, {"id": 2, "n": None}],
        }
    ),
    Step(
        {
            "t": [_row(5, 1, 10, 6), _row(6, 1, 10, 11)],
            "u": [{"id": 3, "n": datetime(2024, 3, 31, 2, 59)}],
        },
        {"t": [_row(2, 1), _row(3, 2, 11, 2)]},
    ),
    Step(  # 10:15 joins two sessions; without 10:06, one is divided
        {
            "t": [_row(7, 1, 10, 15), _row(8, 1, 10, 15), _row(9, 0, 9, 0)],
            "u": [{"id": 2, "n": datetime(2024, 4, 1)}],
        },
        {"t": [_row(5, 1, 10, 6)], "u": [{"id": 3, "n": datetime(2024, 3, 31, 2, 59)}]},
    ),
    Step({"t": [_row(10, 1, 9, 58)]}, {"t": [_row(1, 1, 10, 2), _row(9, 0, 9, 0), _row(8, 1, 10, 15)]}),
]


@pytest.mark.rule("DBSP-10", "DBSP-17", "DBSP-20")
def test_time_windows_equal_spark_and_do_not_change_other_views(
    tmp_path: Path, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered_trace, "BLOCK_ROWS", 2)
    kernels = follow(spark, tmp_path, DATASETS, VIEWS, STEPS)
    assert kernels.group.views == VIEWS.keys() - {"sessions of a day"}
    assert "without another key" in kernels.group.reasons["sessions of a day"]
    keyed = [placed for placed in kernels.chain.operators if isinstance(placed.operator, GatherRows)]
    assert {view for placed in keyed for view in placed.views} == {"keyed sessions", "sessions without zone"}
