"""Build the site into build/site, and fail on any warning. usage: python -m tests.site [--stage]

- `--stage`: only copy the pages and write the reference, into build/pages.
"""

import sys

from tests.site import build, stage


def main() -> None:
    """Stage the pages, and build the site."""
    pages = stage.stage()
    if "--stage" not in sys.argv[1:]:
        build.build(pages)


if __name__ == "__main__":
    main()
