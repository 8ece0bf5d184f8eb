"""Certification as a stage of a plan: a view's circuit against its query, when the view is new (DBSP-19)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemill.events import Event
from tidemill.pipeline.stages import Status
from tidemill.store import Tx
from tidemill.views.certify import certificates
from tidemill.views.certify.certificates import Certificate, ViewCertified, ViewNotCertified
from tidemill.views.circuit.operators import Output
from tidemill.views.steps.keys import StepKeys

if TYPE_CHECKING:
    from tidemill.pipeline.site import Site


@dataclass(frozen=True)
class CertifyView:
    """A view whose circuit is compared with its query on generated steps, once for its code.

    - known: what an earlier certification of the same code found.
    """

    pipeline: str
    view: str
    sql: str
    where: str
    digest: str
    output: Output = field(repr=False)
    tables: Mapping[str, str] = field(repr=False)
    known: Certificate | None = None

    def status(self, tx: Tx, keys: StepKeys) -> Status:
        found = certificates.read(tx, keys.lots.cluster, self.digest)
        if found is None:
            return Status.NEW
        return Status.SAME if found.equal else Status.CHANGED

    def apply(self, site: "Site", holder: str) -> Event | None:
        """Certify it, unless somebody has; the event says what was found."""
        cluster = site.place.cluster
        if site.store.run(lambda tx: certificates.read(tx, cluster, self.digest)) is not None:
            return None
        with site.spark() as spark:
            found = certificates.certify(spark, self.view, self.sql, self.output, self.tables)
        site.store.run(lambda tx: certificates.write(tx, cluster, self.digest, found))
        if not found.equal:
            return ViewNotCertified(pipeline=self.pipeline, view=self.view, why=found.why)
        return ViewCertified(pipeline=self.pipeline, view=self.view, kind=found.kind, steps=found.compared)

    def describe(self) -> dict[str, str]:
        found = self.known
        if found is None:
            detail = "its circuit is compared with plain Spark when it is created"
        elif found.equal:
            detail = f"equal to plain Spark ({found.kind}) after {found.compared} generated steps"
            detail = found.why or detail
        else:
            detail = f"NOT equal to plain Spark, so it is recomputed in every step: {found.why}"
        return {"what": "circuit", "name": self.view, "detail": " ".join(detail.split()), "where": self.where}
