"""Apply mutants to a copy of the source, and list those that no test notices.

    python -m tests.mutants [--only NAME]... [--package NAME]... [--json] [--limit-s 300]

`--only` takes a name or the beginning of one. The results go to build/mutants.json. The exit code is 0 if
every mutant is caught or explained as equivalent, otherwise 1.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from tests.mutants import MUTANTS
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.runner import LIMIT_S, Outcome, Result, Tree

RESULTS = ROOT / "build" / "mutants.json"


def main() -> int:
    """Run the chosen mutants and report the outcome of each."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--only", action="append", default=[], help="a name, or the beginning of one")
    parser.add_argument("--package", action="append", default=[], help="all mutants of a package")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="the time limit of one mutant")
    options = parser.parse_args()
    mutants = choose(options.only, options.package)
    if not mutants:
        parser.error("no mutant has such a name")
    results = run_all(mutants, options.limit_s)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    wrong = [result for result in results if not is_expected(result)]
    if options.json:
        counts = {outcome.value: sum(r.outcome is outcome for r in results) for outcome in Outcome}
        names = [result.name for result in wrong]
        print(json.dumps({"mutants": len(results), **counts, "unexplained": names}))
    else:
        print(f"{len(results)} mutants, {len(wrong)} unexplained" + "".join(f"\n  {r.name}" for r in wrong))
    return 1 if wrong else 0


def choose(names: list[str], packages: list[str]) -> list[Mutant]:
    """Return the mutants with these names and packages; all if neither is given."""
    return [
        mutant
        for mutant in MUTANTS
        if (not names or any(mutant.name.startswith(name) for name in names))
        and (not packages or mutant.package in packages)
    ]


def run_all(mutants: list[Mutant], limit_s: float) -> list[Result]:
    """Run mutants one after the other, with progress on stderr."""
    made = subprocess.run([ROOT / "scripts/make-scratch"], capture_output=True, text=True, check=True)
    folder = Path(made.stdout.strip())
    results = []
    try:
        tree = Tree.copy(folder, limit_s=limit_s)
        _say("running the tests without a mutant")
        tree.check_tests(test for mutant in mutants for test in mutant.tests)
        for number, mutant in enumerate(mutants, 1):
            result = tree.run(mutant)
            results.append(result)
            by = f" by {result.caught_by}" if result.caught_by else ""
            _say(f"[{number}/{len(mutants)}] {mutant.name}: {result.outcome}{by} ({result.seconds} s)")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return results


def is_expected(result: Result) -> bool:
    """Return whether a mutant was caught, or survived as its table explains."""
    explained = next(mutant.equivalent for mutant in MUTANTS if mutant.name == result.name)
    return result.outcome is (Outcome.SURVIVED if explained else Outcome.CAUGHT)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
