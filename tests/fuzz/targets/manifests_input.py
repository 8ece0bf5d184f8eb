"""Damaged objects of a home: manifests and data files. Commands work, or name the object that is damaged."""

import functools
import json
import random
from pathlib import Path
from typing import Any

from tests.fuzz import homes
from tests.fuzz.campaign import check_refusal
from tests.fuzz.mutation import damaged, mutated_value
from tidemill.clock import SYSTEM
from tidemill.errors import TidemillError
from tidemill.lots import manifest
from tidemill.objects.memory import MemoryObjects
from tidemill.publish.manifests import Manifests

CASES = 80
prepare = homes.template
COMMANDS = (
    ("quarantine", "show", "arrivals"),
    ("quarantine", "export", "arrivals", "exported.jsonl"),
    ("quarantine", "discard", "arrivals", "A00000000000000001"),
)


def generate(rng: random.Random) -> dict[str, Any]:
    command = list(rng.choice(COMMANDS)) if rng.random() < 0.1 else None
    return {"command": command, "file": rng.randrange(2**30), "seed": rng.randrange(2**40)}


def check(case: dict[str, Any]) -> None:
    rng = random.Random(case.get("seed", 0))
    if case.get("command"):
        with homes.copied(objects=True) as root:
            folder = root / "home" / "objects"
            files = sorted(path for path in folder.glob("*/name=*quarantine*/**/*") if path.is_file())
            path = files[case.get("file", 0) % len(files)]
            body = _changed(rng, path, path.read_bytes())
            path.write_bytes(body)
            homes.run(case["command"])
        return
    objects, paths = MemoryObjects(SYSTEM), _manifests()
    key = sorted(paths)[case.get("file", 0) % len(paths)]
    for part in manifest.decode(paths[key].read_bytes()).parts:
        objects.put(part, paths[part].read_bytes())
    objects.put(key, _changed(rng, paths[key], paths[key].read_bytes()))
    manifests = Manifests(objects, SYSTEM)
    try:
        manifest.encode(manifests.load(key))
        for leaf in manifests.leaves(key):
            assert leaf.rows >= 0
            assert leaf.size >= 0
        for item in manifests.lot_objects(key):
            objects.get(item.uri)
    except TidemillError as error:
        check_refusal(error)


@functools.cache
def _manifests() -> dict[str, Path]:
    folder = homes.template() / "home" / "objects"
    return {str(path.relative_to(folder)): path for path in folder.glob("datasets/**/manifest*.json")}


def _changed(rng: random.Random, path: Path, body: bytes) -> bytes:
    if path.suffix == ".json" and rng.random() < 0.8:
        changed = mutated_value(rng, json.loads(body))
        body = json.dumps(changed, ensure_ascii=rng.random() < 0.9).encode(errors="replace")
        return damaged(rng, body) if rng.random() < 0.1 else body
    return damaged(rng, body)
