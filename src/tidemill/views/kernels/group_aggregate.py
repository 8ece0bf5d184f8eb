"""One aggregate of a GROUP BY: its kernel, its columns, and the products of columns that it sums."""

from typing import NamedTuple

from tidemill.errors import UsageError
from tidemill.views.aggregates.registry import Accumulator, Argument, Kernel, kernel_of


class Pair(NamedTuple):
    """The names of the columns x and y of an aggregate."""

    x: str
    y: str

    @classmethod
    def of(cls, first: str, second: str) -> "Pair":
        """Return the pair of an aggregate with these arguments: the first is y, the second x, as in Spark.

        >>> Pair.of("a", "b")
        Pair(x='b|a', y='a|b')
        """
        return cls(f"{second}|{first}", f"{first}|{second}")

    def product(self, letters: str) -> str:
        """Return the name of a product: xx, yy or xy."""
        return "*".join(sorted(getattr(self, letter) for letter in letters))


class GroupAggregate(NamedTuple):
    """One aggregate: the name of its kernel, its argument column (None counts rows), and its output name.

    `second` is the column of a second argument.
    """

    kind: str
    column: str | None
    name: str
    second: str | None = None

    @property
    def kernel(self) -> Kernel:
        kernel = kernel_of(self.kind)
        if kernel is None:
            raise UsageError(
                f"the aggregate {self.kind!r} has no kernel",
                hint="use an aggregate that is listed in tidemill.views.aggregates.registry",
            )
        return kernel

    @property
    def sums(self) -> bool:
        """Whether its accumulator is a sum."""
        return self.kernel.accumulator is Accumulator.SUM

    @property
    def of_rows(self) -> bool:
        """Whether its values are structs of an order and a value."""
        return self.kernel.argument is Argument.ORDERED

    @property
    def pair(self) -> Pair | None:
        """The columns x and y of an aggregate of moments."""
        if self.kernel.accumulator is not Accumulator.MOMENTS or self.column is None:
            return None
        return Pair.of(self.column, self.second or self.column)

    @property
    def products(self) -> list[str]:
        """The products of these columns whose sums are stored."""
        return [] if self.pair is None else [self.pair.product(name) for name in self.kernel.products]
