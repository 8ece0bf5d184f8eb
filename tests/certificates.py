"""Certify each view once per process, even if several tests create it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemill.views.certify.bounds import Bounds
    from tidemill.views.certify.certificates import ViewCertificate
    from tidemill.views.circuit.operators import ViewOutput


@contextmanager
def shared_certificates() -> Iterator[None]:
    """Let plans reuse the certificate of the same query, circuit and tables.

    A certificate depends only on these and on Spark, so the test would get the same result. Tests
    of certification call `certify` themselves.
    """
    from tidemill.views.certify import certificates

    certify = certificates.certify
    certified: dict[tuple[Any, ...], ViewCertificate] = {}

    def certify_once(
        spark: "SparkSession",
        name: str,
        sql: str,
        output: "ViewOutput",
        tables: Mapping[str, str],
        *,
        written: "ViewOutput | None" = None,
        seed: int = 0,
        bounds: "Bounds | None" = None,
    ) -> "ViewCertificate":
        before = written.fingerprint if written is not None else None
        key = (name, sql, output.fingerprint, before, tuple(sorted(tables.items())), seed)
        if key not in certified:
            certified[key] = certify(
                spark, name, sql, output, tables, written=written, seed=seed, bounds=bounds
            )
        return certified[key]

    certificates.certify = certify_once
    try:
        yield
    finally:
        certificates.certify = certify
