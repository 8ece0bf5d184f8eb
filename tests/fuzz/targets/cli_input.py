"""Command lines: random commands, options and values exit with a documented code, without a stack trace."""

import random
from typing import Any

from tests.fuzz import homes
from tests.fuzz.mutation import NUMBERS, listed, mutated_text, text
from tidemill.cli import COMMANDS

CASES = 80
prepare = homes.template
_LONG = ("demo", "run", "worker", "ui")
"""They start processes, or serve until a signal comes. Only mistakes in their arguments are tried."""
_OPTIONS = listed("""
--json --home --store --cluster -f --file --limit --from --to --list --name --state --dry-run --parallel
--catch-up --accept --rewind --dead --target-mb --draw --quarantined --help --version -x -- - --limit=
--retry --grace --ttl --slots
""")
_VALUES = listed("""
home sales daily cleaned nope frozen.py frozen.py:frozen frozen.py:nope x.py / A00000000000000001 A1 20260101
20260101PT5M050 2026-01-01 2026-01-01T00:00:00Z 99991231 sqlite:///nope/x.db memory:// postgresql:// all ready
0 -1 1e9 ∞ DROP
""")
_WORDS = listed("show export ingest discard retry pause resume cancel requeue rebuild")


def generate(rng: random.Random) -> list[str]:
    if rng.random() < 0.5:
        arguments = list(rng.choice(homes.COMMANDS))
    else:
        arguments = [rng.choice([*COMMANDS, text(rng)])]
        if rng.random() < 0.4:
            arguments.append(rng.choice(_WORDS))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        place = rng.randrange(len(arguments) + 1)
        added = rng.choice((rng.choice(_OPTIONS), rng.choice(_VALUES), text(rng), str(rng.choice(NUMBERS))))
        if rng.random() < 0.3 and place < len(arguments):
            arguments[place] = mutated_text(rng, arguments[place])
        else:
            arguments.insert(place, added)
    if any(word in _LONG for word in arguments):
        arguments.append("--no-such-option")
    return [argument.replace("\0", "") for argument in arguments]


def check(case: list[Any]) -> None:
    with homes.copied():
        homes.run([str(argument) for argument in case], usage=True)
