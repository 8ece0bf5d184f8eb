"""Chooses what `make test` runs of the tests that kill processes: about a tenth, by a seed.

`make crash` runs every point of every kill matrix. A sample that names its seed runs in `make test`:

    @pytest.mark.parametrize("step", sample(STEPS))       # seed-104-publish.commit, …
    @pytest.mark.parametrize("kills", tenth_and_all(400))  # seed-104-40; in `make crash` 400

Every process of a test run must collect the same tests, so the seed is fixed. `TIDEMILL_SEED=n make test`
chooses other points.
"""

import os
import random
from collections.abc import Collection
from typing import Any

import pytest

SEED = int(os.environ.get("TIDEMILL_SEED", "104"))
SHARE = 10


def sample(points: Collection[Any]) -> list[Any]:
    """Choose a tenth of the points, at least one. A point is a name or a tuple of names."""
    chosen = random.Random(SEED).sample(sorted(points), max(1, round(len(points) / SHARE)))
    return [
        pytest.param(*names, id="-".join(("seed", str(SEED), *names)))
        for names in (point if isinstance(point, tuple) else (point,) for point in chosen)
    ]


def tenth_and_all(kills: int) -> list[Any]:
    """How many random kills a run has: a tenth of them in `make test`, all in `make crash`."""
    tenth = max(1, round(kills / SHARE))
    return [
        pytest.param(tenth, id=f"seed-{SEED}-{tenth}"),
        pytest.param(kills, id=f"seed-{SEED}-{kills}", marks=pytest.mark.crash),
    ]


def half_or_all(examples: int) -> int:
    """How many examples a property test draws: half of them in `make test`, all in `make crash`."""
    return examples if "TIDEMILL_SEED" in os.environ else (examples + 1) // 2
