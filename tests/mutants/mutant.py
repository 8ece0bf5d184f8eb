"""One mutant: a small edit of the source that a test must notice."""

from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
TABLES = Path(__file__).parent
SOURCE = Path("src") / "tidemill"


class Mutant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plausible mistake in one file.

    - name: unique, in words with hyphens.
    - file: relative to `src/tidemill`.
    - rule: the rule that the mistake breaks.
    - breaks: what goes wrong.
    - old, new: the edit; `old` occurs exactly once in the file.
    - caught_by: the tests that must fail, each as `file` or `file::function`, relative to `tests`. They run
      in this order until one fails.
    - equivalent: why no test can fail; empty for a mutant that must be caught.
    """

    name: str
    file: str
    rule: str
    breaks: str
    old: str
    new: str
    caught_by: tuple[str, ...]
    equivalent: str = ""

    @property
    def package(self) -> str:
        """The package that it is in; the steps of views count as a package."""
        parts = self.file.split("/")
        return "steps" if parts[:2] == ["views", "steps"] else parts[0]

    @property
    def path(self) -> Path:
        """The file, relative to the root of the repository."""
        return SOURCE / self.file

    @property
    def tests(self) -> list[str]:
        """The tests, as pytest gets them."""
        return [f"tests/{test}" for test in self.caught_by]

    def apply(self, root: Path = ROOT) -> str:
        """Return the text of the file with the mistake in it; raise `DoesNotApply` if `old` is not in it."""
        text = (root / self.path).read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise DoesNotApply(f"{self.name}: `old` occurs {count} times in {self.path}, not once")
        if self.old == self.new:
            raise DoesNotApply(f"{self.name}: `old` and `new` are equal")
        return text.replace(self.old, self.new)


class DoesNotApply(Exception):
    """The edit of a mutant does not match its file: change the mutant in `tests/mutants`."""


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mutant: tuple[Mutant, ...]


def read_tables(folder: Path = TABLES) -> tuple[Mutant, ...]:
    """Read the mutants of all tables, in the order of their names."""
    tables = [msgspec.toml.decode(path.read_bytes(), type=_Table) for path in sorted(folder.glob("*.toml"))]
    return tuple(mutant for table in tables for mutant in table.mutant)
