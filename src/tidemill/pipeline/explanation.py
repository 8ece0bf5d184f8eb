"""Explain how a view is computed: its circuit, and how each operator is kept up to date."""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tidemill.errors import DeclarationError, GroupUnknown
from tidemill.pipeline.notebook import preformatted
from tidemill.pipeline.reader import failed
from tidemill.views.certify import certificates
from tidemill.views.certify.certificates import ViewCertificate
from tidemill.views.circuit.explanation import CircuitExplanation, draw
from tidemill.views.steps import groups
from tidemill.views.trace.version import TraceVersion
from tidemill.views.trace.version_file import read_version

if TYPE_CHECKING:
    from tidemill.pipeline.pipeline import Pipeline
    from tidemill.views.spark.group_chain import GroupChain

INCREMENTAL = "each step processes only the changes"
RECOMPUTED = "each step recomputes the view and stores the difference"
PARTLY = "each step processes only the changes, but recomputes operators from their stored inputs"
LOADS = (
    "the next step loads {traces} traces of the view from all lots, once; the rows of the view stay the same"
)
NOT_YET = "not yet compared with plain Spark, so no result of its circuit is published"


@dataclass(frozen=True)
class RecomputedOperator:
    """An operator inside a view that steps recompute, why, and about how many stored rows that reads."""

    kind: str
    why: str
    rows: int = 0


@dataclass(frozen=True, repr=False)
class Explanation:
    """Explains how a view is computed, as text, as JSON, or as a drawing.

    >>> import tidemill as tm
    >>> shop = tm.Pipeline("shop", home="shop-home", spark=spark)
    >>> orders = shop.dataset("orders", "id BIGINT")
    >>> view = shop.view("total", "SELECT count(*) AS n FROM orders")
    >>> view.explain().json()["runs"]
    'incremental'

    - certificate: the result of the comparison with plain Spark; None before the first run.
    - declared: for a function, what the user declares about it: linear, keyed or full.
    - always_full: whether the view is declared with `refresh="full"`.
    - recomputed: why each step recomputes the view; empty if the view is incremental.
    - failed: why the view is set aside; empty if it is not.
    - cuts: the operators inside the view that are recomputed from their stored inputs.
    - incremental_share: the share of the view's stored rows that no step reads as a whole.
    - by_arrow, by_spark: the expressions between its operators, by what evaluates them in a small step.
    - loads: how many traces of the view the next step loads from all lots, because the release that stored
      the view's state did not have them.
    """

    view: str
    circuit: CircuitExplanation | None
    certificate: ViewCertificate | None = None
    declared: str = ""
    always_full: bool = False
    recomputed: str = ""
    failed: str = ""
    cuts: tuple[RecomputedOperator, ...] = ()
    incremental_share: float = 1.0
    by_arrow: tuple[str, ...] = ()
    by_spark: tuple[str, ...] = ()
    loads: int = 0

    @property
    def runs(self) -> str:
        """Return how the view is computed, as a sentence."""
        if self.recomputed:
            return f"{RECOMPUTED}: {self.recomputed}"
        if not self.cuts:
            return INCREMENTAL
        reads = "; ".join(f"{cut.kind} (about {cut.rows:,} rows): {cut.why}" for cut in self.cuts)
        return f"{PARTLY} ({self.incremental_share:.0%} of its stored rows are incremental): {reads}"

    @property
    def certified(self) -> str:
        """Return the result of the comparison with plain Spark, as a sentence."""
        from tidemill.pipeline.plan.certification import pending

        certificate = self.certificate
        if certificate is not None and certificate.failed:
            again = f"tidemill explain {self.view} --retry lets the next run try again"
            what = f"declared {self.declared}, not tested" if self.circuit is None else "not compared"
            return f"{what}: {certificate.why}; {again}"
        if certificate is not None and certificate.open:
            what = f"declared {self.declared}, not tested yet" if self.circuit is None else NOT_YET
            return f"{what}; {pending(certificate)}"
        if self.circuit is None and certificate is not None and not certificate.equal:
            return f"a function that is declared {self.declared} but is not: {certificate.why}"
        if self.circuit is None:
            tested = (
                f", confirmed in {certificate.compared} generated steps" if certificate is not None else ""
            )
            return f"a function that is declared {self.declared}{tested}"
        if self.always_full:
            return "refresh='full': always recomputed by plain Spark"
        if certificate is None:
            return f"{NOT_YET}; {pending(certificate)}"
        if not certificate.equal:
            return f"NOT equal to plain Spark: {certificate.why}"
        equal = f"equal to plain Spark ({certificate.kind}) after {certificate.compared} generated steps"
        return certificate.why or equal

    def summary(self) -> str:
        """Return the explanation in a few lines, without the terms of the implementation."""
        lines = [self.view, *([f"  {self.failed}"] if self.failed else []), f"  {self.runs}"]
        if self.certificate is not None and self.certificate.equal and self.circuit is not None:
            steps = f"{self.certificate.compared} generated steps"
            lines.append(f"  checked: the same rows as plain Spark after {steps}")
            if "float" in self.certificate.kind:
                lines.append(
                    "  sums of DOUBLE and FLOAT are correctly rounded; Spark's depend on the order of rows"
                )
            if "ordered" in self.certificate.kind:
                lines.append("  rows that Spark may order in any way are ordered by their content")
        else:
            lines.append(f"  {self.certified}")
        return "\n".join(lines)

    def text(self) -> str:
        """Return the whole explanation as text."""
        head = [f"{self.view}", f"  {self.runs}", f"  certified: {self.certified}"]
        if self.loads:
            head.insert(1, f"  {LOADS.format(traces=self.loads)}")
        if self.failed:
            head.insert(1, f"  {self.failed}")
        for place, expressions in (("Arrow", self.by_arrow), ("Spark", self.by_spark)):
            if expressions:
                head.append(f"  expressions evaluated by {place}: {'; '.join(expressions)}")
        if self.circuit is not None:
            head += [
                "  circuit, with the rung of each operator:",
                *(f"  {line}" for line in self.circuit.text().splitlines()),
            ]
        return "\n".join(head)

    def json(self) -> dict[str, object]:
        """Return the explanation as JSON, with the same content as the text."""
        return {
            "view": self.view,
            "runs": "full" if self.recomputed else "partly incremental" if self.cuts else "incremental",
            "how": self.runs,
            "recomputed": [vars(cut) for cut in self.cuts],
            "incremental_share": 0.0 if self.recomputed else self.incremental_share,
            "loads": self.loads,
            "certified": self._is_certified(),
            "why": self.certified,
            "failed": self.failed or None,
            "expressions": {"arrow": list(self.by_arrow), "spark": list(self.by_spark)},
            "circuit": None if self.circuit is None else self.circuit.json(),
        }

    def _is_certified(self) -> bool | None:
        """Return the result of the comparison; None if there is none yet."""
        return None if self.certificate is None or self.certificate.open else self.certificate.equal

    def drawing(self) -> str:
        """Return the circuit as a picture: the text of an SVG file."""
        if self.circuit is None:
            raise DeclarationError(
                f"cannot draw {self.view}: the view is a function and has no circuit",
                hint="draw a view that is defined in SQL",
            )
        return draw(self.circuit)

    def _repr_html_(self) -> str:
        return preformatted(self.text())

    def __repr__(self) -> str:
        return self.text()

    def _repr_svg_(self) -> str | None:
        return None if self.circuit is None else self.drawing()


def explain(pipeline: "Pipeline", view: str) -> Explanation:
    """Plan a pipeline and explain one of its views."""
    from tidemill.pipeline.plan.certification import Certify
    from tidemill.pipeline.plan.decisions import certified_chain, decide

    plan, decl = pipeline.plan(), pipeline.views[view]
    certificates_of = {stage.view: stage.certificate for stage in plan.stages if isinstance(stage, Certify)}
    groups = plan.program.groups.values()
    (group,) = (group for group in groups if any(member.name == view for member in group.views))
    failures = failed(pipeline)
    passed = {
        name: ", ".join(map(str, failure.passed)) for name, failure in failures.items() if failure.passed
    }
    with pipeline.context.spark() as spark:
        recomputed = decide(spark, group, plan.program.datasets, certificates_of, passed)
        chain = certified_chain(spark, group, plan.program.datasets, certificates_of, passed)
    row = failures.get(view)
    explanation = Explanation(
        view,
        None if decl.function is not None else plan.explained(view, recomputed),
        certificates_of.get(view),
        decl.declared,
        always_full=decl.refresh == "full",
        recomputed=recomputed.get(view, ""),
        failed=row.text if row is not None and row.is_aside else "",
    )
    return _with_state(_with_expressions(explanation, chain), pipeline, chain)


def _with_expressions(explanation: Explanation, group: "GroupChain") -> Explanation:
    """Add the expressions between the operators of a view, and what evaluates them."""
    if group.chain is None or explanation.view not in group.views:
        return explanation
    below = group.chain.below({group.chain.outputs[explanation.view].number})
    by_arrow: dict[str, None] = {}
    by_spark: dict[str, None] = {}
    for edge in group.chain.edges:
        if edge.target in below and edge.plain is None:
            place = by_spark if edge.arrow is None else by_arrow
            place.update(dict.fromkeys(edge.expressions.computed))
    return replace(explanation, by_arrow=tuple(by_arrow), by_spark=tuple(by_spark))


def _with_state(explanation: Explanation, pipeline: "Pipeline", group: "GroupChain") -> Explanation:
    """Add the number of missing traces, and the recomputed operators with the rows stored for them."""
    if group.chain is None or explanation.view not in group.views:
        return explanation
    version = _version(pipeline, explanation.view)
    traces = {
        trace
        for placed in group.chain.operators
        if explanation.view in placed.views
        for trace in placed.reads
    }
    if version.steps:
        explanation = replace(explanation, loads=len(traces - version.steps.keys()))
    cuts = group.cuts.get(explanation.view, ())
    if not cuts:
        return explanation
    rows = version.runs.rows()
    operators = tuple(
        RecomputedOperator(cut.kind, cut.why, sum(rows.get(trace, 0) for trace in cut.inputs)) for cut in cuts
    )
    total, read = sum(rows.get(trace, 0) for trace in traces), sum(cut.rows for cut in operators)
    share = 1 - read / total if total else 1.0
    return replace(explanation, cuts=operators, incremental_share=share)


def _version(pipeline: "Pipeline", view: str) -> TraceVersion:
    """Return the stored state of a view's group; an empty one before the first step."""
    context, group = pipeline.context, pipeline.views[view].group
    try:
        row = context.store.run(lambda tx: groups.read(tx, context.keys, pipeline.name, group))
    except GroupUnknown:
        return TraceVersion()
    return read_version(context.objects, row.version) if row.version else TraceVersion()


def retry_certification(pipeline: "Pipeline", view: str) -> bool:
    """Let the next run repeat the comparison of a view with plain Spark, if the last comparison failed.

    Return whether there was a failed comparison.
    """
    from tidemill.pipeline.plan.certification import Certify

    context = pipeline.context
    stages = [stage for stage in pipeline.plan().stages if isinstance(stage, Certify) and stage.view == view]
    return any(
        context.store.run(
            partial(certificates.forget_failure, cluster=context.place.cluster, digest=stage.test.digest)
        )
        for stage in stages
    )
