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

from tidemill.cli.demo_mill import WIDTH, Mill, Picture, sum_up
from tidemill.clock import SYSTEM

PICTURE = Path(__file__).parent.parent / "docs" / "pictures" / "demo.svg"
LINES = 34


def main() -> None:
    """Run the demo, then draw what a terminal would show at its end."""
    console = Console(file=io.StringIO(), record=True, width=WIDTH, height=LINES, force_terminal=True)
    picture = Picture(console, SYSTEM)
    with tempfile.TemporaryDirectory() as folder:
        summary = Mill(Path(folder), picture, SYSTEM, random.Random(7)).run(kept=False)
    console.print(picture.drawn())
    sum_up(console, summary)
    if not summary.ok:
        raise SystemExit("the demo failed: no picture of that")
    svg = console.export_svg(title="tidemill demo", unique_id="demo")
    # Nothing is fetched from anywhere to show it: any font of even width will do.
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL).replace(
        "Fira Code, monospace", "monospace"
    )
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")
    sys.stdout.write(f"wrote {PICTURE.relative_to(PICTURE.parents[2])}\n")


if __name__ == "__main__":
    main()
