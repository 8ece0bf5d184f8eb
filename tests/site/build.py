"""Build the site with mkdocs-material; every warning is an error."""

import re
from pathlib import Path
from typing import Any

from tests.site.stage import ROOT

SITE = ROOT / "build" / "site"
SECTIONS = {
    "Tutorials": "docs/tutorial",
    "How do I …": "docs/howto",
    "Reference": "docs/reference",
    "Explanation": "docs/explanation",
    "Rules": "docs/rules",
    "Decisions": "docs/adr",
}


def build(pages: Path) -> None:
    """Build the site from staged pages."""
    from mkdocs.commands.build import build as mkdocs_build
    from mkdocs.config import load_config
    from pymdownx.superfences import fence_code_format

    config = load_config(
        config_file=str(ROOT / "mkdocs.yml"),
        docs_dir=str(pages),
        site_dir=str(SITE),
        nav=navigation(pages),
        markdown_extensions=[
            "admonition",
            "attr_list",
            "tables",
            "pymdownx.highlight",
            "pymdownx.superfences",
            "toc",
        ],
        mdx_configs=None,
        strict=True,
    )
    config["mdx_configs"] = {
        "pymdownx.superfences": {
            "custom_fences": [{"name": "mermaid", "class": "mermaid", "format": fence_code_format}]
        },
        "toc": {"slugify": slug, "permalink": True, "toc_depth": 3},
    }
    mkdocs_build(config)


def slug(text: str, separator: str) -> str:
    """Return the anchor of a heading, as repositories show it."""
    return re.sub(r"[^\w\- ]", "", text).strip().lower().replace(" ", separator)


def navigation(pages: Path) -> list[dict[str, Any]]:
    """Return the pages of each section, sorted by their titles."""
    nav: list[dict[str, Any]] = [{"Home": "README.md"}, {"All pages": "docs/README.md"}]
    for title, folder in SECTIONS.items():
        files = sorted((pages / folder).glob("*.md"), key=lambda file: _title(file).lower())
        if folder == "docs/adr":
            files = sorted(files)
        nav.append({title: [{_title(file): str(file.relative_to(pages))} for file in files]})
    nav.append({"Glossary": "docs/glossary.md"})
    others = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "deploy/README.md", "bench/README.md")
    nav.append({"Project": [{_title(pages / name): name} for name in others if (pages / name).exists()]})
    return nav


def _title(file: Path) -> str:
    match = re.search(r"^# (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return match[1].replace("`", "") if match else file.stem
