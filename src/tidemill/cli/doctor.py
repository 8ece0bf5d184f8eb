"""Define `tidemill doctor`: examine what a pipeline has stored, and repair it."""

import click
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.pipeline.doctor import Diagnosis, examine
from tidemill.pipeline.pipeline_file import find
from tidemill.pipeline.upgrades import repeat


@click.command("doctor")
@pipeline_option
@click.option("--deep", is_flag=True, help="Also read all run files, and verify their checksums.")
@click.option(
    "--repeat",
    "repeats",
    is_flag=True,
    help="Also compute the steps since the last version of each group again, and compare.",
)
@click.option("--repair", is_flag=True, help="Repair what can be repaired.")
@json_option
def doctor_command(
    output: CommandOutput, file: str | None, *, deep: bool, repeats: bool, repair: bool
) -> int:
    """Find missing and damaged files, and digests that do not add up.

    The exit code is 1 if a problem is left. With --repair, the state of a group of views with a damaged file
    is computed again by its next step. It is safe while runners work. `tidemill vacuum --dry-run` lists files
    that are no longer needed.

    With --repeat, a group of views that gives other rows than it has committed is marked as diverged. It
    publishes nothing until it is repaired.
    """
    with find(file) as pipeline:
        if repeats:
            repeat(pipeline, say=lambda text: output.people.print(Text(text)))
        diagnosis = examine(pipeline, deep=deep, repair=repair)
    output.result({**_fields(diagnosis), "ok": diagnosis.ok})
    for finding in diagnosis.findings:
        state = "repaired" if finding.repaired else finding.kind
        output.people.print(Text(f"{finding.of}: {state}: {finding.message}"))
        if finding.hint:
            output.people.print(Text(f"  hint: {finding.hint}", style="dim"))
    output.people.print(
        Text(
            f"examined {diagnosis.lots:,} lots, {diagnosis.steps:,} steps and {diagnosis.objects:,} objects:"
            f" {len(diagnosis.findings):,} problems"
        )
    )
    for each in diagnosis.advice:
        output.people.print(Text(f"spark: {each.message}"))
        output.people.print(Text(f"  hint: {each.hint}", style="dim"))
    if diagnosis.orphans:
        deleted = "deleted" if repair else "to delete; runners or --repair do it"
        output.people.print(Text(f"{diagnosis.orphans:,} files that nothing lists: {deleted}"))
    return 0 if diagnosis.ok else 1


def _fields(diagnosis: Diagnosis) -> dict[str, object]:
    return {
        "findings": diagnosis.findings,
        "lots": diagnosis.lots,
        "steps": diagnosis.steps,
        "objects": diagnosis.objects,
        "orphans": diagnosis.orphans,
        "advice": diagnosis.advice,
    }
