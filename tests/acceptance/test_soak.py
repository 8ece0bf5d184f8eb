"""A short soak: the pipeline, the faults and the oracle of `make soak`, for a minute and a half."""

import os
import random
from pathlib import Path

import pytest

from tests.servers.process import ServerUnavailable
from tests.soak.run import SHORT, run


@pytest.mark.crash
@pytest.mark.rule("LOT-20")
@pytest.mark.rule("LOT-35")
def test_a_short_soak_loses_nothing_doubles_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    seed = int(os.environ.get("TIDEMILL_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
    print(f"TIDEMILL_SEED={seed}")  # noqa: T201 - to repeat it
    try:
        soak = run(tmp_path, minutes=1.5, every_s=10.0, seed=seed, limits=SHORT)
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    assert [verdict for verdict in soak.verdicts if not verdict.ok] == []
