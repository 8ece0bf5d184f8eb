"""Every example in a docstring runs, and every public name has one."""

from pathlib import Path

import pytest

import tidemill
from tests.doctests import examples_of, modules_with_examples, run_example

WITHOUT_EXAMPLE = {"__version__", "errors"}  # a string, and a module


@pytest.mark.parametrize("module", modules_with_examples())
def test_examples_print_what_they_say(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, example in enumerate(examples_of(module, with_spark=False)):
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        report = run_example(example, {})
        assert not report, report


@pytest.mark.parametrize("name", sorted(set(tidemill.__all__) - WITHOUT_EXAMPLE))
def test_a_public_name_has_an_example(name: str) -> None:
    value = getattr(tidemill, name)
    is_error = isinstance(value, type) and issubclass(value, BaseException)
    assert is_error or ">>> " in (value.__doc__ or "")
