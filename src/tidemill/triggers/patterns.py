"""Patterns of names with one star: `raw_*`, and what is made of its matches: `clean_{name}`.

`{name}` is what the star stood for: of `raw_*`, `raw_orders` makes `clean_orders`.
"""

from typing import NamedTuple

from tidemill.errors import BadTemplate

PLACE = "{name}"


class Pattern(NamedTuple):
    """What a name begins and ends with; in between there is at least one character."""

    prefix: str
    suffix: str

    @staticmethod
    def parse(text: str) -> "Pattern":
        """A pattern of sources; `BadTemplate` unless it has exactly one star.

        >>> Pattern.parse("raw_*").match("raw_orders")
        'orders'
        """
        if text.count("*") != 1 or "?" in text or "[" in text:
            raise BadTemplate(
                f"{text!r} is no pattern of datasets",
                hint="write one star for the part that differs, e.g. raw_*; without a star it is a name",
            )
        return Pattern(*text.split("*"))

    @staticmethod
    def parse_target(text: str) -> "Pattern":
        """A pattern of targets; `BadTemplate` unless each match has a target of its own."""
        if text.count(PLACE) != 1 or "{" in text.replace(PLACE, "") or "}" in text.replace(PLACE, ""):
            raise BadTemplate(
                f"{text!r} is not one target for each match",
                hint=f"write {PLACE} once, for what the star stands for, e.g. clean_{PLACE}",
            )
        return Pattern(*text.split(PLACE))

    def match(self, name: str) -> str | None:
        """What the star stands for in a name; None when it does not match."""
        least = len(self.prefix) + len(self.suffix) + 1
        if len(name) < least or not name.startswith(self.prefix) or not name.endswith(self.suffix):
            return None
        return name[len(self.prefix) : len(name) - len(self.suffix)]

    def fill(self, part: str) -> str:
        """The name with something in the star's place."""
        return self.prefix + part + self.suffix

    def meets(self, other: "Pattern") -> bool:
        """Whether some name matches both.

        >>> Pattern("raw_", "").meets(Pattern("", "_x"))
        True
        >>> Pattern("raw_", "").meets(Pattern("clean_", ""))
        False
        """
        heads = self.prefix.startswith(other.prefix) or other.prefix.startswith(self.prefix)
        tails = self.suffix.endswith(other.suffix) or other.suffix.endswith(self.suffix)
        return heads and tails  # whatever lies between them, a long enough name has room for it
