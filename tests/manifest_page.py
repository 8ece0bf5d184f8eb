"""Write docs/reference/manifest.schema.json: the JSON schema of manifests, for tools that read them (LOT-25).

usage: python -m tests.manifest_page
"""

import json
from pathlib import Path

from tidemill.lots import manifest

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "manifest.schema.json"


def page() -> str:
    """The schema, as published."""
    about = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Tidemill manifest, format {manifest.FORMAT}",
    }
    return json.dumps({**about, **manifest.schema()}, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
