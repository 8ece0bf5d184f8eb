"""Certification of functions as views, with real Spark."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration import views_oracle
from tidemill.views.certify.declared_functions import certify_function

DDL = {"t": "a INT, b INT, x DOUBLE, s STRING", "u": "a INT, e STRING"}


def union(t: Any, u: Any) -> Any:
    return t.select("a", "s").unionAll(u)


def join(t: Any, u: Any) -> Any:
    return t.join(u, "a").select("a", "s", "e")


def per_key(t: Any, u: Any) -> Any:
    return t.join(u, "a", "left").groupBy("a").count()


LINEAR: dict[str, tuple[Callable[..., Any], list[str], bool]] = {
    "columns and rows": (lambda t: t.where("b > 0").selectExpr("a + 1 AS a", "upper(s) AS s"), ["t"], True),
    "rows from arrays": (lambda t: t.selectExpr("a", "explode(array(b, b)) AS b"), ["t"], True),
    "two tables put together": (union, ["t", "u"], True),
    "distinct": (lambda t: t.select("s").distinct(), ["t"], False),
    "a row of nothing": (lambda t: t.groupBy().count(), ["t"], False),
    "a join": (join, ["t", "u"], False),
    "the first rows": (lambda t: t.orderBy("a", "b", "x", "s").limit(3), ["t"], False),
}
KEYED: dict[str, tuple[Callable[..., Any], list[str], bool]] = {
    "groups": (lambda t: t.groupBy("a").count(), ["t"], True),
    "a join by the key": (per_key, ["t", "u"], True),
    "groups by something else": (lambda t: t.groupBy("s").count(), ["t"], False),
    "a total": (lambda t: t.groupBy().count(), ["t"], False),
}


@pytest.fixture(autouse=True)
def quick(spark: Any) -> Any:
    with views_oracle.stage(spark, {}, DDL):
        yield


@pytest.mark.rule("DBSP-18", "DBSP-19")
def test_a_function_that_contradicts_its_declaration_is_not_certified(spark: Any) -> None:
    for name, (function, reads, linear) in LINEAR.items():
        certificate = certify_function(spark, function, reads, {table: DDL[table] for table in reads})
        assert certificate.equal is linear, (name, certificate)
        assert linear is (not certificate.why)
    for name, (function, reads, keyed) in KEYED.items():
        certificate = certify_function(
            spark, function, reads, {table: DDL[table] for table in reads}, keyed_by=["a"]
        )
        assert certificate.equal is keyed, (name, certificate)


@pytest.mark.rule("DBSP-19")
def test_a_function_that_raises_on_generated_rows_is_not_certified(spark: Any) -> None:
    certificate = certify_function(spark, lambda t: t.selectExpr("1 / (a - a) AS q"), ["t"], {"t": DDL["t"]})
    assert not certificate.equal
    assert "raises an error on generated rows" in certificate.why
