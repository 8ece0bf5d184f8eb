"""The screens of the page: each reads its answer, and renders a template on the server."""

from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

import jinja2
import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tidemill import __version__
from tidemill.errors import ObjectError, SparkError, TidemillError, UsageError
from tidemill.futures.protocol.states import FutureState
from tidemill.obs.event_log import EventFilter
from tidemill.obs.lines import Severity
from tidemill.ui import drawing, formats
from tidemill.ui.access import COOKIE, SESSION_S
from tidemill.ui.api import limited_body, status_of
from tidemill.ui.model import cluster, columns, futures, graph, health, log, overview, rows, run, table, views
from tidemill.ui.model.answers import Action, RecordPage, RowPage
from tidemill.ui.operations import (
    ChangesParameters,
    EventsParameters,
    FutureParameters,
    FuturesParameters,
    ListParameters,
    LotsParameters,
    NoParameters,
    RecordsParameters,
    RunParameters,
    RunsParameters,
    SampleParameters,
    StepsParameters,
    TableParameters,
    TriggersParameters,
    ViewParameters,
    ViewRowsParameters,
    lot_grid,
)

if TYPE_CHECKING:
    from tidemill.ui.app import Site

SCREENS = {
    "/": "Overview",
    "/lineage": "Lineage",
    "/runs": "Runs",
    "/views": "Views",
    "/cluster": "Cluster",
    "/futures": "Futures",
    "/events": "Events",
}
PARENTS = {
    "/table": "/",
    "/columns": "/",
    "/rows": "/",
    "/quarantine": "/",
    "/run": "/runs",
    "/view": "/views",
    "/view-columns": "/views",
    "/view-query": "/views",
    "/view-rows": "/views",
    "/changes": "/views",
    "/future": "/futures",
}
"""The screen of the navigation that each other screen belongs to."""

CHARTED_STEPS = 60
RUN_EVENTS = 50

Context = dict[str, Any]
Screen = Callable[["Site", Any], Context]


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": formats.number,
        "size": formats.size,
        "duration": formats.duration,
        "moment": formats.moment,
        "short": formats.short,
        "numeric": formats.numeric_columns,
    }
    environment.globals |= {"release": __version__, "screens": SCREENS}
    return environment


def compile_templates() -> None:
    """Compile all templates, so that the first request need not."""
    for name in _templates().list_templates():
        _templates().get_template(name)


def _link(path: str, **parameters: object) -> str:
    return formats.link(path, parameters)


def render(
    site: "Site", request: Request, template: str, status: HTTPStatus = HTTPStatus.OK, **context: object
) -> Response:
    """Render a template with the values that every screen needs."""
    now = site.reader.clock.wall()
    session = site.session(request)
    body = (
        _templates()
        .get_template(template)
        .render(
            link=_link,
            now=now,
            ago=lambda at: formats.ago(at, now),
            time_of=lambda at: formats.time_of(at, now),
            screen=PARENTS.get(request.url.path, request.url.path),
            request_path=request.url.path,
            here=formats.link(request.url.path, dict(request.query_params)),
            query=dict(request.query_params),
            cluster_name=site.reader.cluster,
            can_sign_in=bool(site.access.token),
            signed_in=bool(session),
            form_token=site.access.form_token(session),
            message=request.query_params.get("message", "")[:500],
            failed=request.query_params.get("failed", "")[:500],
            **context,
        )
    )
    return Response(body, status, media_type="text/html")


def error_page(site: "Site", request: Request, status: HTTPStatus, message: str, hint: str) -> Response:
    """Render an error as a screen."""
    return render(
        site, request, "error.html", status, title=status.phrase, code=int(status), error=message, hint=hint
    )


# --- what each screen shows


def _overview(site: "Site", which: ListParameters) -> Context:
    grid = lot_grid(site.reader, which)
    return {"title": "Overview", "summary": overview.summary(site.reader), "grid": grid, "which": which}


def _lineage(site: "Site", _: NoParameters) -> Context:
    answer = graph.lineage(site.reader)
    return {"title": "Lineage", "graph": answer, "layout": drawing.arrange(answer)}


def _table(site: "Site", which: LotsParameters) -> Context:
    detail = table.detail(site.reader, which.table, which.version)
    lots = table.lot_page(site.reader, which.table, which.version, which.before, which.limit)
    return {"title": which.table, "detail": detail, "lots": lots, "which": which}


def _columns(site: "Site", which: TableParameters) -> Context:
    detail = table.detail(site.reader, which.name, which.version)
    revisions = columns.history(detail.schemas)
    return {"title": f"Columns of {which.name}", "detail": detail, "revisions": revisions}


def _rows(site: "Site", which: SampleParameters) -> Context:
    detail = table.detail(site.reader, which.table, which.version)
    sample = _shown(lambda: rows.sample(site.reader, which.table, which.version, limit=which.limit))
    return {"title": f"Rows of {which.table}", "detail": detail, "sample": sample}


def _quarantine(site: "Site", which: RecordsParameters) -> Context:
    detail = table.detail(site.reader, which.table, which.version)
    page, why = RecordPage(items=(), records=detail.quarantined), ""
    try:
        page = rows.records(site.reader, which.table, which.version, which.limit)
    except (ObjectError, UsageError) as error:
        why = f"{error.message}. {error.hint}"
    return {"title": f"Quarantine of {which.table}", "detail": detail, "page": page, "why": why}


def _shown(read: Callable[[], RowPage]) -> RowPage:
    """Return rows, or why they cannot be shown."""
    try:
        return read()
    except (ObjectError, SparkError, UsageError) as error:
        return RowPage(why=f"{error.message}. {error.hint}")


def _runs(site: "Site", which: RunsParameters) -> Context:
    return {"title": "Runs", "runs": overview.runs(site.reader, which.after, which.limit)}


def _run(site: "Site", which: RunParameters) -> Context:
    detail = run.detail(site.reader, which.arc, which.lot, which.generation)
    wanted = EventFilter(pipeline=detail.pipeline, about=detail.name, lot=detail.lot)
    lines = log.page(site.reader, wanted, limit=RUN_EVENTS)
    return {"title": f"{detail.name} {detail.lot}", "run": detail, "log": lines}


def _views(site: "Site", which: ListParameters) -> Context:
    return {"title": "Views", "views": views.page(site.reader, which.after, which.limit)}


def _view(site: "Site", which: StepsParameters) -> Context:
    detail = views.detail(site.reader, which.view, which.pipeline)
    steps = views.steps(site.reader, which.view, which.pipeline, which.before, which.limit)
    charted = views.steps(site.reader, which.view, which.pipeline, limit=CHARTED_STEPS).items[::-1]
    charts = (
        drawing.chart("Rows changed per step", [step.rows for step in charted], formats.number),
        drawing.chart("Latency per step", [step.latency_s for step in charted], formats.duration),
        drawing.chart("Bytes written per step", [step.size for step in charted], formats.size),
        drawing.chart("State", [step.state_size for step in charted], formats.size),
    )
    return {
        "title": which.view,
        "view": detail,
        "steps": steps,
        "charts": [chart for chart in charts if chart.has_values] if len(charted) > 1 else [],
        "charted": charted,
    }


def _view_query(site: "Site", which: ViewParameters) -> Context:
    detail = views.detail(site.reader, which.name, which.pipeline)
    return {
        "title": f"Query of {which.name}",
        "view": detail,
        "circuit": drawing.circuit_tree(detail.circuit),
    }


def _view_columns(site: "Site", which: ViewParameters) -> Context:
    detail = views.detail(site.reader, which.name, which.pipeline)
    page = views.columns(site.reader, detail.name, detail.pipeline)
    return {"title": f"Columns of {which.name}", "view": detail, "columns": page}


def _view_rows(site: "Site", which: ViewRowsParameters) -> Context:
    detail = views.detail(site.reader, which.view, which.pipeline)
    sample = _shown(lambda: rows.sample(site.reader, which.view, pipeline=detail.pipeline, limit=which.limit))
    return {"title": f"Rows of {which.view}", "view": detail, "sample": sample}


def _changes(site: "Site", which: ChangesParameters) -> Context:
    detail = views.detail(site.reader, which.view, which.pipeline)
    steps = views.steps(site.reader, which.view, detail.pipeline, limit=CHARTED_STEPS)
    changed = [step for step in steps.items if step.rows]
    chosen = which.step or (changed[0].step if changed else 0)
    sample = _shown(lambda: rows.changes(site.reader, which.view, detail.pipeline, chosen, which.limit))
    return {
        "title": f"Changes of {which.view}",
        "view": detail,
        "sample": sample,
        "changed": changed,
        "chosen": chosen,
    }


def _cluster(site: "Site", which: TriggersParameters) -> Context:
    triggers = cluster.triggers(site.reader, which.name, which.after, which.limit)
    over_time = health.read(site.reader)
    return {
        "title": "Cluster",
        "cluster": cluster.detail(site.reader),
        "triggers": triggers,
        "which": which,
        "charts": drawing.health_charts(over_time),
        "span": over_time.every_s * len(over_time.items),
    }


def _futures(site: "Site", which: FuturesParameters) -> Context:
    page = futures.page(site.reader, which.state, which.name, which.before, which.limit)
    states = [state.value for state in FutureState]
    counts = site.reader.count_futures()
    return {"title": "Futures", "futures": page, "which": which, "states": states, "counts": counts}


def _events(site: "Site", which: EventsParameters) -> Context:
    if which.severity is None:
        which = msgspec.structs.replace(which, severity=Severity.NORMAL.value)
    page = log.page(site.reader, which.filter, which.before, which.limit)
    return {"title": "Events", "events": page, "which": which, "severities": log.severities()}


def _future(site: "Site", which: FutureParameters) -> Context:
    detail = futures.detail(site.reader, which.id)
    return {"title": detail.name, "future": detail}


_SCREENS: dict[str, tuple[str, type[Any], Screen]] = {
    "/": ("overview.html", ListParameters, _overview),
    "/lineage": ("lineage.html", NoParameters, _lineage),
    "/table": ("table.html", LotsParameters, _table),
    "/columns": ("columns.html", TableParameters, _columns),
    "/rows": ("rows.html", SampleParameters, _rows),
    "/quarantine": ("quarantine.html", RecordsParameters, _quarantine),
    "/runs": ("runs.html", RunsParameters, _runs),
    "/run": ("run.html", RunParameters, _run),
    "/views": ("views.html", ListParameters, _views),
    "/view": ("view.html", StepsParameters, _view),
    "/view-query": ("view_query.html", ViewParameters, _view_query),
    "/view-columns": ("view_columns.html", ViewParameters, _view_columns),
    "/view-rows": ("view_rows.html", ViewRowsParameters, _view_rows),
    "/changes": ("changes.html", ChangesParameters, _changes),
    "/cluster": ("cluster.html", TriggersParameters, _cluster),
    "/futures": ("futures.html", FuturesParameters, _futures),
    "/future": ("future.html", FutureParameters, _future),
    "/events": ("events.html", EventsParameters, _events),
}
"""The template, the parameters and the context of each screen."""

_ROW_SCREENS = ("/rows", "/quarantine", "/view-rows", "/changes")
"""The screens with rows of tables. If the page has a token, they need it."""


def routes(site: "Site") -> list[Route]:
    """Return the routes of the screens, the sign-in and the actions."""
    screens = [
        Route(path, _screen(site, *entry, rows=path in _ROW_SCREENS), methods=["GET"])
        for path, entry in _SCREENS.items()
    ]

    def sign_in_form(request: Request) -> Response:
        return render(site, request, "login.html", title="Sign in")

    async def sign_in(request: Request) -> Response:
        form = await _form(request)
        if not site.access.is_same_origin(request.headers) or not site.access.is_token(form.get("token", "")):
            why = "The token is not valid."
            return render(site, request, "login.html", HTTPStatus.UNAUTHORIZED, title="Sign in", wrong=why)
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        response.set_cookie(
            COOKIE,
            site.access.new_session(),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=site.access.tls,
        )
        return response

    async def act(request: Request) -> Response:
        form = await _form(request)
        if not site.may_act(request, form.get("form_token", "")):
            return error_page(
                site, request, HTTPStatus.FORBIDDEN, "You are not signed in.", "Sign in with the token."
            )
        return await site.in_thread(lambda: _act(site, form))

    return [
        *screens,
        Route("/login", sign_in_form, methods=["GET"]),
        Route("/login", sign_in, methods=["POST"]),
        Route("/actions", act, methods=["POST"]),
    ]


def _screen(
    site: "Site", template: str, parameters: type[Any], read: Screen, *, rows: bool
) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        if rows and not site.may_read_rows(request):
            return _needs_token(site, request)
        names = {field.name for field in msgspec.structs.fields(parameters)}
        query = {name: value for name, value in request.query_params.items() if name in names}
        try:
            which = msgspec.convert(query, parameters, strict=False)
            context = read(site, which)
        except msgspec.ValidationError as error:
            return error_page(site, request, HTTPStatus.BAD_REQUEST, f"{error}.", "Check the address.")
        except TidemillError as error:
            return error_page(site, request, status_of(error), error.message, error.hint)
        return render(site, request, template, **context)

    return respond


def _needs_token(site: "Site", request: Request) -> Response:
    message = "Rows of tables are shown to users who have the token."
    return error_page(site, request, HTTPStatus.UNAUTHORIZED, message, "Sign in with the token.")


def _act(site: "Site", form: dict[str, str]) -> Response:
    """Carry out an action of a form, and return to the screen with a message."""
    back = urlsplit(form.get("back", "/"))
    parameters = dict(parse_qsl(back.query, keep_blank_values=True))
    parameters = {name: value for name, value in parameters.items() if name not in ("message", "failed")}
    try:
        action = msgspec.convert(
            {
                "name": form.get("name", ""),
                "pipeline": form.get("pipeline", ""),
                "target": form.get("target", ""),
                "lots": form.get("lots", "").split(),
                "first": form.get("first", ""),
                "last": form.get("last", ""),
            },
            Action,
        )
        parameters["message"] = site.actions.run(action).message
    except (msgspec.ValidationError, TidemillError) as error:
        parameters["failed"] = str(error).replace("\nhint:", " –")
    path = back.path if back.path in _SCREENS else "/"
    return RedirectResponse(formats.link(path, parameters), HTTPStatus.SEE_OTHER)


async def _form(request: Request) -> dict[str, str]:
    try:
        body = (await limited_body(request)).decode()
        return dict(parse_qsl(body, keep_blank_values=True, max_num_fields=100))
    except (msgspec.ValidationError, ValueError):
        return {}
