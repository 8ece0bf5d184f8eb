"""The HTTP API: `/api/v1`, with JSON answers. Everything that it returns is read from the store."""

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tidemill.errors import (
    ArcUnknown,
    DatasetUnknown,
    FutureUnknown,
    LotUnknown,
    ObjectUnavailable,
    StoreBusy,
    StoreUnavailable,
    TidemillError,
    ViewRefused,
)
from tidemill.ui import openapi
from tidemill.ui.model.answers import Action, ErrorAnswer
from tidemill.ui.operations import OPERATIONS, Operation

if TYPE_CHECKING:
    from tidemill.ui.app import Site

MOST_BODY = 1_000_000

_UNKNOWN = (ArcUnknown, DatasetUnknown, FutureUnknown, LotUnknown, ViewRefused)


def routes(site: "Site") -> list[Route]:
    """Return the routes of the API."""
    reading = [
        Route(f"/api/v1/{operation.path}", _reading(site, operation), methods=["GET"])
        for operation in OPERATIONS
    ]

    async def act(request: Request) -> Response:
        if not site.may_act(request):
            return refused(site)
        try:
            action = msgspec.json.decode(await limited_body(request), type=Action)
        except msgspec.MsgspecError as error:
            return error_response(HTTPStatus.BAD_REQUEST, "usage", str(error), "see /api/v1/openapi.json")
        return await site.in_thread(lambda: answered(lambda: site.actions.run(action)))

    async def document(_: Request) -> Response:
        return json_response(openapi.document())

    return [
        *reading,
        Route("/api/v1/actions", act, methods=["POST"]),
        Route("/api/v1/openapi.json", document, methods=["GET"]),
    ]


def _reading(site: "Site", operation: Operation) -> Callable[[Request], Response]:
    def read(request: Request) -> Response:
        if operation.rows and not site.may_read_rows(request):
            return refused(site)
        try:
            parameters = operation.convert(request.query_params)
        except msgspec.ValidationError as error:
            return error_response(HTTPStatus.BAD_REQUEST, "usage", str(error), "see /api/v1/openapi.json")
        return answered(lambda: operation.read(site.reader, parameters))

    return read


def answered(read: Callable[[], object]) -> Response:
    """Return what a function returns as JSON, or its error with the status that fits."""
    try:
        return json_response(read())
    except TidemillError as error:
        return error_response(status_of(error), error.code, error.message, error.hint)


def status_of(error: TidemillError) -> HTTPStatus:
    """Return the HTTP status for an error."""
    if isinstance(error, _UNKNOWN):
        return HTTPStatus.NOT_FOUND
    if isinstance(error, StoreUnavailable | StoreBusy | ObjectUnavailable):
        return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.BAD_REQUEST


async def limited_body(request: Request) -> bytes:
    """Return the body of a request; raise `msgspec.ValidationError` if it is too large."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY:
            raise msgspec.ValidationError(f"the body is larger than {MOST_BODY:,} bytes")
    return bytes(body)


def refused(site: "Site") -> Response:
    """Return the answer to a request without the token."""
    if not site.access.token:
        return error_response(
            HTTPStatus.FORBIDDEN,
            "read-only",
            "this page is read-only",
            "to allow actions, start it with --token-file FILE",
        )
    return error_response(
        HTTPStatus.UNAUTHORIZED,
        "unauthorized",
        "the request has no valid token",
        "send the header Authorization: Bearer TOKEN",
    )


def json_response(value: object, status: HTTPStatus = HTTPStatus.OK) -> Response:
    """Return a value as JSON."""
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_response(status: HTTPStatus, code: str, message: str, hint: str) -> Response:
    """Return an error as JSON."""
    return json_response(ErrorAnswer(code=code, message=message, hint=hint), status)
