"""The pytest plugin for users: each test gets the pipeline of the project with an empty home."""

import pytest

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
