"""The tests that certify views: what is tested, and the event that reports the result."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.events import Event
from tidemill.views.certify.certificates import ViewCertificate, ViewCertified, ViewNotCertified
from tidemill.views.certify.equality import equality_of
from tidemill.views.circuit.circuit import walk
from tidemill.views.circuit.operators import Opaque, ViewOutput
from tidemill.views.circuit.rungs import rungs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, kw_only=True)
class ViewTest(ABC):
    """A test of one view, which is run once for each digest.

    - digest: the digest of everything that the result depends on.
    - tables: the columns of the tables that the view reads.
    """

    pipeline: str = ""
    view: str
    digest: str = ""
    tables: Mapping[str, str] = field(repr=False)

    @abstractmethod
    def event(self, certificate: ViewCertificate) -> Event:
        """Return the event that reports the result."""


@dataclass(frozen=True, kw_only=True)
class CircuitTest(ViewTest):
    """Compares the chain of a view with its query.

    - group: the group of the view; its views are executed by one chain.
    - sql: the original query.
    - output: the circuit that would run.
    - written: the circuit before any rewrite; the comparison uses it if the query's sort order leaves ties.
    """

    group: str = ""
    sql: str
    output: ViewOutput = field(repr=False)
    written: ViewOutput | None = field(default=None, repr=False)

    def event(self, certificate: ViewCertificate) -> Event:
        if not certificate.equal:
            return ViewNotCertified(pipeline=self.pipeline, view=self.view, why=certificate.why)
        return ViewCertified(
            pipeline=self.pipeline, view=self.view, kind=certificate.kind, steps=certificate.compared
        )

    @property
    def calls_unknown_functions(self) -> bool:
        """Whether the query may call a function that only the session of the user knows."""
        return any(isinstance(operator, Opaque) for operator in walk(self.output))

    def trivial(self) -> ViewCertificate | None:
        """Return the certificate of a view that needs no comparison; None if it needs one."""
        if not all(placed.deterministic for placed in rungs(self.output).values()):
            return ViewCertificate(
                equal=True, kind="none", why="not deterministic, so there is nothing to compare"
            )
        if isinstance(self.output.input, Opaque):
            kind = equality_of(self.output).name
            return ViewCertificate(equal=True, kind=kind, why="the original query runs unchanged")
        return None


@dataclass(frozen=True, kw_only=True)
class FunctionTest(ViewTest):
    """Tests a view that is a function and is declared linear or keyed.

    - declared: what is declared, in words.
    - reads: the tables whose frames the function takes, in this order.
    - keyed_by: the columns of the key; empty if the function is declared linear.
    """

    declared: str
    function: "Callable[..., DataFrame]" = field(repr=False)
    reads: tuple[str, ...]
    keyed_by: tuple[str, ...]

    def event(self, certificate: ViewCertificate) -> Event:
        if not certificate.equal:
            wrong = "this could not be tested" if certificate.failed else "is not"
            why = f"it is declared {self.declared} but {wrong}: {certificate.why}"
            return ViewNotCertified(pipeline=self.pipeline, view=self.view, why=why)
        return ViewCertified(
            pipeline=self.pipeline, view=self.view, kind=self.declared, steps=certificate.compared
        )
