"""Configuration: a mutated tidemill.toml or pyproject.toml names a pipeline, or gets a helpful error."""

import os
import random
import tempfile
from pathlib import Path
from typing import Any

from tests.fuzz.campaign import check_refusal
from tests.fuzz.mutation import damaged, mutated_text, text, value
from tidemill.errors import TidemillError
from tidemill.pipeline import pipeline_file

CASES = 150
_TOML = (
    'pipeline = "shop.py:shop"\n',
    '# comment\npipeline = "shop.py"\n',
    'pipeline = "package.module:shop"\nother = 1\n',
    "pipeline = 3\n",
    '[pipeline]\nname = "x"\n',
    "",
)
_PYPROJECT = (
    '[project]\nname = "x"\n[tool.tidemill]\npipeline = "shop.py:shop"\n',
    "[tool]\ntidemill = 3\n",
    "tool = 1\n",
    'tool = ["tidemill"]\n',
    "[[tool.tidemill]]\npipeline = 'shop.py'\n",
    "[tool.tidemill.pipeline]\n",
    "[tool.other]\nx = 1\n",
)
_WORDS = (
    "pipeline",
    "tool",
    "tidemill",
    "=",
    "[",
    "]",
    '"shop.py"',
    "1979-05-27",
    "nan",
    "{}",
    "'''",
    "[[tool]]",
    "true",
)
_SHOP = "import tidemill as tm\nshop = tm.Pipeline('shop', home='home')\n"


def generate(rng: random.Random) -> dict[str, Any]:
    files: dict[str, bytes] = {}
    for name, examples in (("tidemill.toml", _TOML), ("pyproject.toml", _PYPROJECT)):
        if rng.random() < 0.6:
            content = rng.choice(examples)
            for _ in range(rng.choice((0, 1, 2))):
                content = mutated_text(rng, content, _WORDS)
            data = content.encode(rng.choice(("utf-8", "utf-8", "utf-16")), "surrogatepass")
            files[name] = damaged(rng, data) if rng.random() < 0.2 else data
    shop = _SHOP if rng.random() < 0.5 else mutated_text(rng, _SHOP, ("raise", "exit()", "None", "1/0", "\n"))
    files["shop.py"] = shop.encode("utf-8", "replace")
    target = None
    if rng.random() < 0.4:
        target = rng.choice(
            (
                "shop.py:shop",
                "shop.py",
                "shop:shop",
                mutated_text(rng, "shop.py:shop"),
                text(rng),
                "a:b:c",
                "/",
                ".py",
                "..",
                ".x",
                "shop..x",
            )
        )
    return {"files": files, "target": target, "value": value(rng, 0)}


def check(case: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in case.get("files", {}).items():
            (Path(folder) / name).write_bytes(content)
        os.chdir(folder)
        try:
            target, base = pipeline_file.locate(case.get("target"), Path(folder))
            if "exit" not in str(case) and "os" not in str(case.get("target")):
                pipeline_file.load(target, base)
        except TidemillError as error:
            check_refusal(error)
        finally:
            os.chdir("/")
