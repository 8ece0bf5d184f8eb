"""Fuzzing of views (`make fuzz ARGS="--seconds 600"`): queries from new seeds, judged as in the tests.

What differs is printed with its seed and made smaller first: fewer rows, then fewer steps, for as long as it
still differs. The same seed draws the same query again: `--seed N --count 1`.
"""

import argparse
import itertools
import random
import sys
from typing import Any

from tests.integration import views_oracle
from tests.integration.test_views_generated import cases
from tests.integration.views_generator import DDL
from tests.servers.spark import small_spark
from tidemill.clock import SYSTEM
from tidemill.spark.sessions import open_session
from tidemill.testing import Case, Judge, Step
from tidemill.views.certify import generate
from tidemill.views.certify.contents import Contents

BATCH = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, help="of the first query; drawn if it is not given")
    parser.add_argument("--count", type=int, help="how many queries, instead of a time")
    given = parser.parse_args()
    first = given.seed if given.seed is not None else random.SystemRandom().randrange(2**40)
    sys.stdout.write(f"seed {first}\n")
    spark = open_session(small_spark())
    ends = SYSTEM.monotonic() + given.seconds
    with views_oracle.stage(spark, {}, DDL) as tables:
        for done in itertools.count(0, BATCH):
            if SYSTEM.monotonic() >= ends if given.count is None else done >= given.count:
                sys.stdout.write(f"{min(done, given.count or done)} queries, all equal to plain Spark\n")
                return 0
            some = BATCH if given.count is None else min(BATCH, given.count - done)
            found, _, _ = cases(spark, tables, range(first + done, first + done + some))
            steps = generate.steps(DDL, seed=first + done)[:3]
            verdict = Judge(spark, DDL).run(found, steps)
            if not verdict:
                wrong = verdict.mismatches[0].case
                small = smaller(spark, wrong, steps)
                again = Judge(spark, DDL).run([wrong], small)
                sys.stdout.write(f"{again}\ncircuit: {wrong.held}\nsteps:\n")
                sys.stdout.writelines(f"  {step}\n" for step in small)
                return 1
    return 0


def smaller(spark: Any, case: Case, steps: list[Step]) -> list[Step]:
    """The fewest rows of one step with which the case still differs; the steps themselves if it takes all."""

    def differs(rows: dict[str, list[Any]]) -> bool:
        return not Judge(spark, DDL).run([case], [Step(inserts=rows)])

    contents = Contents(DDL)
    for step in steps:
        contents.apply(step)
        rows = {name: contents.rows(name) for name in DDL}
        if differs(rows):
            break
    else:
        return steps
    shrunk = True
    while shrunk:
        shrunk = False
        for name in DDL:
            for place in range(len(rows[name]) - 1, -1, -1):
                less = {**rows, name: rows[name][:place] + rows[name][place + 1 :]}
                if differs(less):
                    rows, shrunk = less, True
    return [Step(inserts=rows)]


if __name__ == "__main__":
    sys.exit(main())
