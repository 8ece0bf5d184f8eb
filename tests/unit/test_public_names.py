"""The public names of `tidemill`, and the cost of importing it."""

import json
import subprocess
import sys

import tidemill
from tidemill import errors
from tidemill.sources.registry import SOURCES


def test_the_public_names_are_sorted_and_exist() -> None:
    assert tidemill.__all__ == sorted(set(tidemill.__all__))
    for name in tidemill.__all__:
        assert getattr(tidemill, name) is not None


def test_dir_shows_public_names_only() -> None:
    assert dir(tidemill) == tidemill.__all__


def test_every_kind_of_source_is_public() -> None:
    assert set(SOURCES) <= set(tidemill.__all__)


def test_every_family_of_errors_is_public() -> None:
    families = [kind.__name__ for kind in errors.TidemillError.__subclasses__() if kind.__subclasses__()]
    assert set(families) <= set(tidemill.__all__)
    assert tidemill.errors is errors


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(tidemill, "nothing")


def test_importing_and_connecting_load_no_large_modules() -> None:
    large = ["pyarrow", "obstore", "numpy", "pyspark", "rich", "msgspec", "cloudpickle"]
    code = (
        "import sys, json, tempfile, tidemill\n"
        f"at_import = [name for name in {large} if name in sys.modules]\n"
        "with tidemill.connect(home=tempfile.mkdtemp()) as client:\n"
        "    assert client.put(1).result() == 1\n"
        f"print(json.dumps([at_import, [name for name in {large[:5]} if name in sys.modules]]))\n"
    )
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert json.loads(process.stdout) == [[], []]
