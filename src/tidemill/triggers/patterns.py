"""Name patterns with one star, such as `raw_*`, and targets for their matches, such as `clean_{name}`.

`{name}` is the part that the star matched: with `raw_*`, the dataset `raw_orders` gives `clean_orders`.
"""

from typing import NamedTuple

from tidemill.errors import BadTemplate

PLACEHOLDER = "{name}"


class Pattern(NamedTuple):
    """The beginning and end of matching names; at least one character is between them."""

    prefix: str
    suffix: str

    @staticmethod
    def parse(text: str) -> "Pattern":
        """Parse a pattern of dataset names; raise `BadTemplate` unless it has exactly one star.

        >>> Pattern.parse("raw_*").match("raw_orders")
        'orders'
        """
        if text.count("*") != 1 or "?" in text or "[" in text:
            raise BadTemplate(
                f"invalid dataset pattern: {text!r}",
                hint="use exactly one star, for the part that varies: raw_*",
            )
        return Pattern(*text.split("*"))

    @staticmethod
    def parse_target(text: str) -> "Pattern":
        """Parse a pattern of targets; raise `BadTemplate` unless each match has a separate target."""
        if (
            text.count(PLACEHOLDER) != 1
            or "{" in text.replace(PLACEHOLDER, "")
            or "}" in text.replace(PLACEHOLDER, "")
        ):
            raise BadTemplate(
                f"invalid target pattern: {text!r}",
                hint=f"use {PLACEHOLDER} once, for the part that the star matches: clean_{PLACEHOLDER}",
            )
        return Pattern(*text.split(PLACEHOLDER))

    def match(self, name: str) -> str | None:
        """Return the part of a name that the star matches; None if the name does not match."""
        least = len(self.prefix) + len(self.suffix) + 1
        if len(name) < least or not name.startswith(self.prefix) or not name.endswith(self.suffix):
            return None
        return name[len(self.prefix) : len(name) - len(self.suffix)]

    def fill(self, part: str) -> str:
        """Return the name with this part in place of the star."""
        return self.prefix + part + self.suffix

    def meets(self, other: "Pattern") -> bool:
        """Return whether some name matches both patterns.

        >>> Pattern("raw_", "").meets(Pattern("", "_x"))
        True
        >>> Pattern("raw_", "").meets(Pattern("clean_", ""))
        False
        """
        heads = self.prefix.startswith(other.prefix) or other.prefix.startswith(self.prefix)
        tails = self.suffix.endswith(other.suffix) or other.suffix.endswith(self.suffix)
        return heads and tails  # a long enough name has room for both
