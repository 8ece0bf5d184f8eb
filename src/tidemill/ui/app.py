"""The web application: the page, the API, the metrics and the health check, behind one access policy."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidemill import __version__
from tidemill.errors import TidemillError
from tidemill.ui import api, metrics, pages
from tidemill.ui.access import COOKIE, HEADERS, AccessPolicy
from tidemill.ui.actions import Actions
from tidemill.ui.model.answers import Health
from tidemill.ui.model.reader import StoreReader

T = TypeVar("T")
LOG = logging.getLogger(__name__)
OPEN_PATHS = ("/healthz", "/login", "/assets/")
"""Paths that need no token, even where reading needs it."""


class Site:
    """What the requests of one server share.

    Args:
        reader: reads the store.
        actions: carries out actions.
        access: who may read and who may act.
    """

    def __init__(self, reader: StoreReader, actions: Actions, access: AccessPolicy) -> None:
        self.reader = reader
        self.actions = actions
        self.access = access
        self.metrics = metrics.PageMetrics(reader)

    def session(self, request: HTTPConnection) -> str:
        """Return the cookie of the session; empty if there is none."""
        cookie = request.cookies.get(COOKIE, "")
        return cookie if cookie and self.access.has_session(cookie) else ""

    def may_read(self, request: HTTPConnection) -> bool:
        if not self.access.reads_need_token or request.url.path.startswith(OPEN_PATHS):
            return True
        return self.access.has_token(request.headers) or bool(self.session(request))

    def may_read_rows(self, request: HTTPConnection) -> bool:
        """Return whether a request may see rows of tables: with a token, only users who have it."""
        if not self.access.token:
            return self.may_read(request)
        return self.access.has_token(request.headers) or bool(self.session(request))

    def may_act(self, request: Request, form_token: str = "") -> bool:
        """Return whether a request may change something: it has the token, or comes from our own page."""
        if self.access.has_token(request.headers):
            return True
        cookie = self.session(request)
        given = form_token or request.headers.get("x-form-token", "")
        return (
            bool(cookie)
            and self.access.is_same_origin(request.headers)
            and self.access.is_form_token(cookie, given)
        )

    async def in_thread(self, fn: Callable[[], T]) -> T:
        """Run a function that waits for the store in a thread."""
        return await run_in_threadpool(fn)


class AccessMiddleware:
    """Refuses requests that may not read, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app = app
        self._site = site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in message["headers"]}
                added = {**HEADERS, "cache-control": "no-store"}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (name.encode(), value.encode())
                        for name, value in added.items()
                        if name.encode() not in names
                    ),
                ]
            await send(message)

        refusal = self._refusal(HTTPConnection(scope))
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: HTTPConnection) -> Response | None:
        site = self._site
        if not site.access.accepts_host(request.headers.get("host", "")):
            return api.error_response(
                HTTPStatus.MISDIRECTED_REQUEST,
                "host",
                "the page does not serve this host name",
                "open it as http://127.0.0.1:PORT",
            )
        if site.may_read(request):
            return None
        if request.url.path.startswith(("/api/", "/metrics")):
            return api.refused(site)
        return RedirectResponse("/login", HTTPStatus.SEE_OTHER)


class Assets(StaticFiles):
    """Style sheets and scripts. A browser may keep them for an hour; their address has the release."""

    def file_response(self, *args: object, **options: object) -> Response:
        response = super().file_response(*args, **options)  # type: ignore[arg-type]
        response.headers["cache-control"] = "public, max-age=3600"
        return response


def create_app(site: Site) -> Starlette:
    """Return the web application of a site."""

    def healthz(_: Request) -> Response:
        try:
            site.reader.run(lambda tx: tx.get(site.reader.keys.cluster.leader))
        except TidemillError as error:
            health = Health(ok=False, release=__version__, message=error.message)
            return api.json_response(health, HTTPStatus.SERVICE_UNAVAILABLE)
        return api.json_response(Health(ok=True, release=__version__))

    def serve_metrics(request: Request) -> Response:
        body, kind = site.metrics.exposition(request.headers.get("accept", ""))
        return Response(body, media_type=kind)

    def unexpected(request: Request, error: Exception) -> Response:
        LOG.error("an error in %s", request.url.path, exc_info=error)
        return pages.error_page(
            site, request, HTTPStatus.INTERNAL_SERVER_ERROR, "This is a bug in Tidemill.", "See its log."
        )

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status = HTTPStatus(error.status_code)
        if request.url.path.startswith("/api/"):
            return api.error_response(status, "http", status.phrase, "see /api/v1/openapi.json")
        return pages.error_page(site, request, status, f"{status.phrase}.", "Choose a screen above.")

    pages.compile_templates()
    return Starlette(
        routes=[
            *pages.routes(site),
            *api.routes(site),
            Route("/healthz", healthz),
            Route("/metrics", serve_metrics),
            Mount("/assets", Assets(directory=Path(__file__).parent / "assets")),
        ],
        middleware=[Middleware(AccessMiddleware, site=site)],
        exception_handlers={HTTPException: refused, Exception: unexpected},
    )
