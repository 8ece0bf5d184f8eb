"""What there is to say about a view: its circuit, the rung each operator could have, and how it runs now."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemill.errors import DeclarationError
from tidemill.views.certify.certificates import Certificate
from tidemill.views.circuit import drawing
from tidemill.views.circuit.explain import Explained

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline

FOLLOWS = "each step follows the change"
COMPARED = "each step recomputes it, and stores what differs from its table"


@dataclass(frozen=True, repr=False)
class Explanation:
    """Explain how a view is computed: as text, as JSON, or as a drawing.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home", spark=spark)
    >>> orders = shop.dataset("orders", "id BIGINT")
    >>> view = shop.view("total", "SELECT count(*) AS n FROM orders")
    >>> view.explain().json()["runs"]
    'incremental'

    - certificate: what the comparison with plain Spark found; None before the view was run.
    - declared: of a view that is a function, what it was declared to be.
    - always_full: whether its refresh is `full`.
    - recomputed: why it is recomputed in each step; empty for one that follows the change.
    """

    view: str
    circuit: Explained | None
    certificate: Certificate | None = None
    declared: str = ""
    always_full: bool = False
    recomputed: str = ""

    @property
    def runs(self) -> str:
        """How it is computed, in words."""
        return f"{COMPARED}: {self.recomputed}" if self.recomputed else FOLLOWS

    @property
    def certified(self) -> str:
        """The comparison with plain Spark, in words."""
        found = self.certificate
        if self.circuit is None and found is not None and not found.equal:
            return f"a function, declared {self.declared}, and it is NOT: {found.why}"
        if self.circuit is None:
            tried = f", and so it was in {found.compared} generated steps" if found is not None else ""
            return f"a function, declared {self.declared}{tried}"
        if self.always_full:
            return "refresh='full': always recomputed, by plain Spark itself"
        if found is None:
            return "not yet compared with plain Spark: that is done when it is first run"
        if not found.equal:
            return f"NOT equal to plain Spark: {found.why}"
        return found.why or f"equal to plain Spark ({found.kind}) after {found.compared} generated steps"

    def text(self) -> str:
        """For people."""
        head = [f"{self.view}", f"  {self.runs}", f"  certified: {self.certified}"]
        if self.circuit is not None:
            head += [
                "  its circuit, with the rung of each operator:",
                *(f"  {line}" for line in self.circuit.text().splitlines()),
            ]
        return "\n".join(head)

    def json(self) -> dict[str, object]:
        """For programs: everything that the text says."""
        return {
            "view": self.view,
            "runs": "full" if self.recomputed else "incremental",
            "how": self.runs,
            "certified": None if self.certificate is None else self.certificate.equal,
            "why": self.certified,
            "circuit": None if self.circuit is None else self.circuit.json(),
        }

    def drawing(self) -> str:
        """The circuit as a picture: the text of an SVG file."""
        if self.circuit is None:
            raise DeclarationError(f"{self.view} is a function: it has no circuit to draw")
        return drawing.draw(self.circuit)

    def __repr__(self) -> str:
        return self.text()

    def _repr_svg_(self) -> str | None:
        return None if self.circuit is None else self.drawing()


def explain(pipeline: "Pipeline", view: str) -> Explanation:
    """Plan a pipeline, and explain one of its views."""
    from tidemill.pipeline.chaining import chain_of
    from tidemill.pipeline.plan.certification import CertifyFunction, CertifyView

    plan, decl = pipeline.plan(), pipeline.views[view]
    certified = (one for one in plan.stages if isinstance(one, CertifyView | CertifyFunction))
    known = next((one.known for one in certified if one.view == view), None)
    always = decl.refresh == "full"
    (members,) = (one.views for one in plan.program.groups.values() if any(v.name == view for v in one.views))
    with pipeline.site.spark() as spark:
        reasons = chain_of(spark, members, plan.program.datasets).reasons
    why = "refresh='full'" if always else reasons.get(view, "")
    circuit = None if decl.function is not None else plan.explained(view)
    return Explanation(view, circuit, known, decl.declared, always_full=always, recomputed=why)
