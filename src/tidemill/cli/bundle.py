"""Define `tidemill bundle`: write an archive for support, without secrets."""

from io import BytesIO
from pathlib import Path

import click
from rich.text import Text

from tidemill.cli.options import pipeline_option
from tidemill.cli.output import CommandOutput, json_option
from tidemill.errors import UsageError
from tidemill.obs.lines import counted
from tidemill.pipeline.pipeline_file import find


@click.command("bundle")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@pipeline_option
@json_option
def bundle_command(output: CommandOutput, path: Path, file: str | None) -> None:
    """Write an archive for support to the new file PATH, such as shop.zip.

    It has versions, settings, the state of tables and runs, the event log, nodes and queries. It has no
    secrets and no rows of tables; messages of errors may quote values.
    """
    from tidemill.pipeline.support_bundle import write_bundle

    if path.exists():
        raise UsageError(f"{path} already exists", hint="choose another name")
    archive = BytesIO()
    with find(file) as pipeline:
        files = write_bundle(pipeline, archive)
    try:
        path.write_bytes(archive.getvalue())
    except OSError as error:
        raise click.FileError(str(path), error.strerror or str(error)) from None
    output.result({"path": str(path.resolve()), "files": files})
    written = counted(len(files), "file")
    output.people.print(Text(f"wrote {written} to {path}; look at them before you send it"))
