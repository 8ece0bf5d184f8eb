"""Damaged stores: bytes of the SQLite file, and rows of every kind. Commands work, or report the damage."""

import random
import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from tests.fuzz import homes
from tests.fuzz.mutation import damaged, mutated_value

CASES = 30
prepare = homes.template


def generate(rng: random.Random) -> dict[str, Any]:
    command = list(rng.choice(homes.COMMANDS))
    if rng.random() < 0.3:
        return {"command": command, "file": rng.randrange(2**40)}
    return {"command": command, "rows": [rng.randrange(2**40) for _ in range(rng.choice((1, 1, 3, 30)))]}


def check(case: dict[str, Any]) -> None:
    with homes.copied() as root:
        store = root / "home" / "store.db"
        if "file" in case:
            _damage_file(random.Random(case["file"]), store)
        if "rows" in case:
            _damage_rows(case["rows"], store)
        homes.run(case.get("command") or ["status"])


def _damage_file(rng: random.Random, store: Path) -> None:
    data = store.read_bytes()
    match rng.randrange(4):
        case 0:
            page = rng.randrange(len(data) // 4096)
            inside = damaged(rng, data[page * 4096 : page * 4096 + 4096])
            data = data[: page * 4096] + inside + data[page * 4096 + 4096 :]
        case 1:
            data = data[: rng.randrange(len(data))]
        case 2:
            data = damaged(rng, data[:100]) + data[100:]
        case 3:
            first, second = (rng.randrange(len(data) // 4096) * 4096 for _ in range(2))
            data = data[:first] + data[second : second + 4096] + data[first + 4096 :]
    store.write_bytes(data)


def _damage_rows(seeds: list[int], store: Path) -> None:
    """Damage one row for each seed, in one transaction."""
    connection = sqlite3.connect(store)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        for seed in seeds:
            _damage_row(random.Random(seed), connection)
        connection.commit()
    finally:
        connection.close()


def _damage_row(rng: random.Random, connection: sqlite3.Connection) -> None:
    rows = connection.execute("SELECT k, v FROM kv ORDER BY k").fetchall()
    key, body = rng.choice(rows)
    match rng.randrange(6):
        case 0:
            body = damaged(rng, body)
        case 1:
            connection.execute("DELETE FROM kv WHERE k = ?", (key,))
        case 2:
            _, body = rng.choice(rows)
        case 3:
            connection.execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (damaged(rng, key), body))
        case _:
            body = _changed(rng, body)
    connection.execute("UPDATE kv SET v = ? WHERE k = ?", (body, key))


def _changed(rng: random.Random, body: bytes) -> bytes:
    try:
        return msgspec.msgpack.encode(mutated_value(rng, msgspec.msgpack.decode(body)))
    except (msgspec.MsgspecError, OverflowError, TypeError, ValueError, RecursionError):
        return damaged(rng, body)
