"""Queries over frames: the tables that their names refer to, without Spark."""

from typing import Any

from tidemill.spark import queries


class Session:
    """Temporary views by name, and the text that a query reaches Spark with."""

    def __init__(self) -> None:
        self.views: dict[str, str] = {}
        self.catalog = self

    def sql(self, text: str) -> str:
        return text

    def dropTempView(self, name: str) -> None:  # noqa: N802 - Spark's name
        del self.views[name]


class Frame:
    def __init__(self, session: Session, rows: str) -> None:
        self._session = session
        self._rows = rows

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802 - Spark's name
        self._session.views[name] = self._rows


def test_two_queries_with_the_same_tag_do_not_see_each_others_tables() -> None:
    session: Any = Session()

    def query(rows: str) -> Any:
        frames: Any = {"orders": Frame(session, rows)}
        return queries.over(session, "SELECT * FROM orders", frames, "plan1")

    with query("mine") as first:
        with query("yours") as second:
            tables = [
                rows
                for text in (first, second)
                for view, rows in session.views.items()
                if f" {view} " in text
            ]
            assert tables == ["mine", "yours"]
        assert list(session.views.values()) == ["mine"]
    assert not session.views


def test_the_alias_of_a_sampled_table_follows_the_sample() -> None:
    def text(sql: str) -> str:
        return queries.renamed(sql, lambda name: f"my_{name}")

    assert text("SELECT id FROM t TABLESAMPLE (50 PERCENT) WHERE id > 1") == (
        "SELECT id FROM my_t TABLESAMPLE (50 PERCENT) AS `t` WHERE id > 1"
    )
    assert text("SELECT 1 FROM t, u TABLESAMPLE (5 ROWS) REPEATABLE (7)") == (
        "SELECT 1 FROM my_t AS `t`, my_u TABLESAMPLE (5 ROWS) REPEATABLE (7) AS `u`"
    )
    assert text("SELECT 1 FROM t TABLESAMPLE (5 ROWS) x") == "SELECT 1 FROM my_t TABLESAMPLE (5 ROWS) x"
