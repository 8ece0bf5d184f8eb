"""Count how the queries of TPC-H and TPC-DS are kept up to date: python -m tests.tpc_rungs [--json]

incremental   the chain computes every operator from the change
cut           some operators are recomputed from their stored inputs
full          each step recomputes the view
"""

import json
import sys
from collections import Counter
from typing import Any

from tests.integration import (
    tpcds_queries_1_50,
    tpcds_queries_51_99,
    tpcds_tables,
    tpch,
    views_oracle,
)
from tidemill.spark import schema
from tidemill.spark.sessions import SparkSettings, open_session
from tidemill.views.chain.chain import InputKind
from tidemill.views.circuit.rewrites import rewrite
from tidemill.views.spark.group_chain import group_chain

SUITES = {
    "tpch": (tpch.QUERIES, tpch.DDL),
    "tpcds": ({**tpcds_queries_1_50.QUERIES, **tpcds_queries_51_99.QUERIES}, tpcds_tables.DDL),
}


Answers = dict[str, dict[str, tuple[str, str]]]


def rungs_of(spark: Any, suite: str) -> dict[str, tuple[str, str]]:
    """Return for each query how it is kept up to date, and what is recomputed."""
    queries, ddl = SUITES[suite]
    answers = {}
    with views_oracle.stage(spark, {}, ddl) as tables:
        frames = {name: spark.createDataFrame([], str(schema.parse(text))) for name, text in ddl.items()}
        for name, sql in queries.items():
            output = rewrite(views_oracle.compiled(spark, tables, sql).output)
            group = group_chain(
                spark, {name: output}, frames, dict.fromkeys(ddl, InputKind("changes")), "rungs"
            )
            cuts = group.cuts.get(name, ())
            if name not in group.views:
                answers[name] = "full", group.reasons[name]
            elif cuts:
                answers[name] = "cut", ", ".join(sorted(cut.kind for cut in cuts))
            else:
                answers[name] = "incremental", ""
    return answers


def main() -> None:
    spark = open_session(SparkSettings(master="local[1]"))
    answers = {suite: rungs_of(spark, suite) for suite in SUITES}
    spark.stop()
    lines = [json.dumps(answers)] if "--json" in sys.argv else lines_of(answers)
    sys.stdout.write("\n".join(lines) + "\n")


def lines_of(answers: Answers) -> list[str]:
    lines = []
    for suite, queries in answers.items():
        counts = Counter(rung for rung, _ in queries.values())
        lines.append(f"{suite}: {', '.join(f'{count} {rung}' for rung, count in counts.most_common())}")
        for name, (rung, what) in queries.items():
            lines += [f"  {name:5} {rung}: {what}"] if rung != "incremental" else []
    return lines


if __name__ == "__main__":
    main()
