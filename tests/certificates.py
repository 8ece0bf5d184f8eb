"""Certify each view once per process, even if several tests create it, or not at all."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    import tidemill as tm
    from tidemill.views.certify.certificates import ViewCertificate
    from tidemill.views.certify.circuit_comparison import GeneratedTables
    from tidemill.views.certify.view_tests import CircuitTest


@contextmanager
def shared_certificates() -> Iterator[None]:
    """Let runners reuse the certificate of the same query, circuit and tables.

    A certificate depends only on these and on Spark, so the test would get the same result. Tests
    of certification call `certify` themselves.
    """
    from tidemill.views.certify import tester
    from tidemill.views.certify.circuit_comparison import certify_circuits

    certified: dict[tuple[Any, ...], ViewCertificate] = {}

    def certify_once(
        spark: "SparkSession", tests: "Sequence[CircuitTest]", tables: "GeneratedTables", **options: Any
    ) -> "list[ViewCertificate]":
        keys = [_key(test) for test in tests]
        new = [test for test, key in zip(tests, keys, strict=True) if key not in certified]
        results = certify_circuits(spark, new, tables, **options) if new else []
        certified.update(zip(map(_key, new), results, strict=True))
        return [certified[key] for key in keys]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tester, "certify_circuits", certify_once)
        yield


def _key(test: "CircuitTest") -> tuple[Any, ...]:
    before = test.written.fingerprint if test.written is not None else None
    return (test.view, test.sql, test.output.fingerprint, before, tuple(sorted(test.tables.items())))


def certify_views(pipeline: "tm.Pipeline") -> None:
    """Certify the views of a pipeline without running it."""
    from tidemill.runner.certifier import Certifier
    from tidemill.testing.threads import STUCK_S

    plan, context = pipeline.plan(), pipeline.context
    plan.apply("certify")
    with context.spark() as spark:
        certifier = Certifier(context.scope, lambda: context.node, spark, plan.program)
        certifier.start()
        certifier.wait(STUCK_S)


@contextmanager
def assumed_certificates() -> Iterator[None]:
    """Let runners take views as certified, without a comparison.

    For tests that compare the rows of views with Spark, or read none: a comparison before it takes most of
    their time, and would only hide a wrong circuit from them.
    """
    from tidemill.runner import certifier
    from tidemill.views.certify.certificates import ViewCertificate
    from tidemill.views.certify.equality import equality_of
    from tidemill.views.certify.tester import BATCH, ViewTester
    from tidemill.views.certify.view_tests import CircuitTest, ViewTest

    class AssumingTester(ViewTester):
        def __enter__(self) -> "AssumingTester":
            return self

        def run(
            self,
            tests: "Sequence[ViewTest]",
            beside: "Sequence[CircuitTest]" = (),
            *,
            batch: int = BATCH,
        ) -> "list[ViewCertificate]":
            return [assumed(test) for test in tests]

    def assumed(test: "ViewTest") -> "ViewCertificate":
        if not isinstance(test, CircuitTest):
            return ViewCertificate(equal=True, compared=1)
        certificate = test.trivial()
        return certificate or ViewCertificate(equal=True, kind=equality_of(test.output).name, compared=1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certifier, "ViewTester", AssumingTester)
        yield
