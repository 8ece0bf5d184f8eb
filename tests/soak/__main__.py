"""Run the soak: `python -m tests.soak --minutes 20 --report docs/reports/soak.html`.

It exits with 1 if a verdict is negative. The seed decides the order of the faults. The speed of the machine
decides how much happens in the time, but never what is checked.
"""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from tests.servers.process import ServerUnavailable
from tests.soak.report import Soak, render
from tests.soak.run import SHORT, Limits, run


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20.0, help="how long faults are injected")
    parser.add_argument("--every-s", type=float, default=13.0, help="the time from one fault to the next")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--report", type=Path, default=Path("build/soak.html"))
    parser.add_argument(
        "--render", type=Path, help="only render the report of an earlier run again, from its JSON"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folder with the logs of the nodes")
    given = parser.parse_args()
    if given.render is not None:
        soak = msgspec.json.decode(given.render.read_bytes(), type=Soak)
        given.report.write_text(render(soak), encoding="utf-8")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="tidemill-soak-"))
    sys.stderr.write(f"seed {given.seed}, logs in {folder}\n")
    limits = Limits() if given.minutes >= 20 else SHORT
    soak = None
    try:
        soak = run(folder, given.minutes, given.every_s, given.seed, limits)
    except ServerUnavailable as reason:
        raise SystemExit(f"the soak cannot run here: {reason}") from None
    finally:
        if soak is not None and soak.ok and not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_text(render(soak), encoding="utf-8")
    data = Path("build") / "soak.json"
    data.parent.mkdir(exist_ok=True)
    data.write_bytes(msgspec.json.format(msgspec.json.encode(soak), indent=1))
    for verdict in soak.verdicts:
        sys.stdout.write(f"{'ok  ' if verdict.ok else 'FAIL'} {verdict.name}: {verdict.detail}\n")
    sys.stdout.write(f"{len(soak.faults)} faults; report: {given.report}\n")
    return 0 if soak.ok else 1


if __name__ == "__main__":
    sys.exit(main())
