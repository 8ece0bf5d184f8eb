"""Schemathesis draws requests from the OpenAPI document: no answer is a server error, all fit the document.

`make test` draws few requests with a fixed seed; `make crash` draws new ones.
"""

import os
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.unit.page_stage import TOKEN, URL, PageStage
from tidemill.ui.app import create_app
from tidemill.ui.operations import OPERATIONS

schemathesis = pytest.importorskip("schemathesis")
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
HEADERS = {"authorization": f"Bearer {TOKEN}", "host": urlsplit(URL).netloc}
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.fixture(scope="module")
def api() -> Any:
    stage = PageStage().fill()
    stage.quarantine(stage.orders, "A00000000000000001", 3)
    document = schemathesis.openapi.from_asgi(
        "/api/v1/openapi.json", create_app(stage.site()), headers=HEADERS
    )
    document.config.update(base_url=URL)
    return document


def draw(api: Any, *, requests: int, number: int) -> None:
    """Send requests to every operation of the document, and check each answer."""
    operations = [result.ok() for result in api.get_all_operations()]
    assert len(operations) == len(OPERATIONS) + 1
    for operation in operations:

        @seed(number)
        @settings(
            max_examples=requests,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=QUIET,
        )
        @given(case=operation.as_strategy())
        def send(case: Any) -> None:
            case.call_and_validate(checks=CHECKS, headers=HEADERS)

        send()


def test_no_request_of_the_document_is_a_server_error(api: Any) -> None:
    draw(api, requests=6, number=20260302)


@pytest.mark.crash
def test_many_requests_of_the_document_are_no_server_error(api: Any) -> None:
    draw(api, requests=400, number=int(os.environ.get("TIDEMILL_SEED", "1")))
