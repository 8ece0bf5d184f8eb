"""Write docs/pictures/demo.svg: the last screen of a real run of `tidemill demo`, and its summary.

usage: python -m tests.demo_picture
"""

import io
import random
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tidemill.cli.demo.pipeline_demo import WIDTH, PipelineDemo, PipelineScreen, print_summary
from tidemill.clock import SYSTEM

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "demo.svg"
LINES = 34


def main() -> None:
    """Run the demo, then draw its last screen."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH, height=LINES, force_terminal=True)
    screen = PipelineScreen(console, SYSTEM)
    with tempfile.TemporaryDirectory() as folder:
        summary = PipelineDemo(Path(folder), screen, SYSTEM, random.Random(7)).run(keep=False)
    console.print(screen.render())
    print_summary(console, summary)
    if not summary.ok:
        raise SystemExit("the demo failed, so there is no picture")
    svg = console.export_svg(title="tidemill demo", unique_id="demo")
    # Use a local font: the picture must not fetch anything.
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace(
        "Fira Code, monospace", "monospace"
    )
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {PICTURE.relative_to(PICTURE.parents[2])}\n")


if __name__ == "__main__":
    main()
