"""The pytest plugin for users: each test gets the pipeline of the project with an empty home."""

import pytest

import tidemill as tm
from tidemill.testing.crash_tests import CrashTests
from tidemill.testing.lots import Lots

PRELOADED = (tm.Pipeline, CrashTests, Lots)
"""pytester forgets the modules that a test imports; importing them twice gives two classes of one name."""

PIPELINE = """
import tidemill as tm

shop = tm.Pipeline("shop")
orders = shop.dataset("orders", "id BIGINT")
shop.source(shop.dataset("files", "id BIGINT"), tm.folder("landing/*.json"))
"""
TESTS = """
def append(pipeline):
    assert pipeline["orders"].position == 0
    pipeline["orders"].append([(1,)])
    assert pipeline["orders"].position == 1

def test_first(pipeline, tmp_path):
    append(pipeline)
    assert (tmp_path / "shop-home").is_dir()

def test_second(pipeline):
    append(pipeline)
    pipeline.dataset("more", "id BIGINT")

def test_third(pipeline):
    assert pipeline.names == ["orders", "files"]
"""


def test_each_test_gets_a_pipeline_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=PIPELINE, test_shop=TESTS)
    (pytester.path / "tidemill.toml").write_text('pipeline = "shop.py:shop"\n')
    pytester.runpytest_inprocess().assert_outcomes(passed=3)
    assert not (pytester.path / "shop-home").exists()


def test_without_a_configuration_the_error_says_so(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(pipeline): pass")
    result = pytester.runpytest_inprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*found no tidemill.toml*"])


TOOLS = """
import datetime as dt

def test_lots_are_written_and_listed(pipeline, lots, tmp_path):
    assert lots.append("orders", [(1,)], [{"id": 2}, {"id": 3}]) == [lot.lot for lot in lots.of("orders")]
    assert lots.counts("orders") == {"complete": 2}
    assert [lot.rows for lot in lots.of("orders")] == [1, 2]
    assert lots.problems() == []
    assert lots.land("landing/a.json", [{"id": 1}, {"id": 2}]).read_text() == '{"id": 1}\\n{"id": 2}\\n'
    assert lots.land("landing/a.csv", [{"id": 1}]).read_text().split() == ["id", "1"]
    assert (tmp_path / "landing" / "a.json").exists()

def test_the_clock_moves_both_clocks_of_the_pipeline(pipeline, lots, clock):
    lots.append("orders", [(1,)])
    wall, monotonic = clock.wall(), clock.monotonic()
    clock.advance("P1D")
    assert clock.wall() - wall >= 86_400 <= clock.monotonic() - monotonic
    lots.append("orders", [(2,)])
    first, second = (lot.at for lot in lots.of("orders"))
    assert second - first >= 86_400
"""


def test_the_fixtures_write_lots_and_move_the_clock(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(shop=PIPELINE, test_shop=TOOLS)
    (pytester.path / "tidemill.toml").write_text('pipeline = "shop.py:shop"\n')
    pytester.runpytest_inprocess().assert_outcomes(passed=2)
