"""Compare our steps with Pathway's over the same 1M orders; Pathway keeps everything in memory only."""

import shutil

import pyarrow.parquet as pq

from bench import environment
from bench.comparison import rounded
from bench.side import ROOT
from bench.views.beside import NAMES
from bench.views.queries import REVENUE
from bench.views.shop import Step
from bench.views.stage import Differs, Stage, Timing, files_of

PEER = "bench.peers.pathway_view"
ROWS = 1_000_000
LARGEST = 100_000


def measure(stage: Stage) -> None:
    """Measure `vs_pathway_1k`, `_10k`, `_100k`: the ratio of times at 1M orders."""
    if not stage.scale.slow_peers:
        stage.report.absent("vs_pathway_10k", why="not run with --quick")
        return
    python = environment.python(
        stage.report.say,
        folder=ROOT / ".venv-bench-pathway",
        requirements=ROOT / "bench" / "requirements-pathway.txt",
        constraints=ROOT / "bench" / "constraints-pathway.txt",
    )
    followed = stage.followed(REVENUE, min(ROWS, stage.scale.rows))
    shop = followed.shop
    with stage.beside("pathway") as folder, stage.opened(PEER, python=python) as side:
        now = shop.write(folder / "now")
        loaded = side.ask("step", files={f"{table}_in": files_of(now / table) for table in followed.ddl})
        stage.report.say(f"Pathway has read the base in {loaded['ms'] / 1e3:.1f} s")

        def both(step: Step, mine: Timing, theirs: Timing) -> None:
            followed.step(step, mine)
            timed = side.ask_timed("step", files={key: [path] for key, path in step.files.items()})
            theirs.ms.append(timed.answer["ms"])
            theirs.cpu_s.append(timed.cpu_s)
            theirs.answers.append(timed.answer)
            shutil.rmtree(step.folder)

        for _ in range(stage.scale.warm_ups):
            both(shop.step(1_000), Timing(), Timing())
        for changes, count in stage.scale.steps.items():
            if changes > LARGEST:
                continue
            mine, theirs = Timing(), Timing()
            for _ in range(count):
                both(shop.step(changes), mine, theirs)
            raw = {
                "ours": mine.as_json("bench/ours/view_steps.py"),
                "peer": theirs.as_json("bench/peers/pathway_view.py") | {"fed_ms": theirs.of("fed_ms")},
                "base_ms": rounded(loaded["ms"]),
            }
            stage.report.figure(f"vs_pathway_{NAMES[changes]}", theirs.median / mine.median, raw)
        followed.check()
        with stage.beside("pathway-check") as beside:
            stage.ours.ask("table", name=followed.name, path=str(beside / "ours.parquet"))
            _same(str(beside / "ours.parquet"), side.ask("table"))


def _same(path: str, theirs: list[list[int]]) -> None:
    columns = pq.read_table(path).to_pydict()
    if sorted(map(list, zip(*columns.values(), strict=True))) != theirs:
        raise Differs("the view of Pathway is another one: it was not asked the same")
