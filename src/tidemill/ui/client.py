"""A typed Python client of the HTTP API. It needs no package besides Tidemill itself."""

import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from tidemill.errors import PageError, UsageError
from tidemill.ui.model import answers
from tidemill.ui.model.answers import Action, ActionResult, ErrorAnswer

T = TypeVar("T")
TIMEOUT_S = 30.0


class PageClient:
    """Reads the state of a cluster from a page, and acts on it.

    >>> client = PageClient("http://127.0.0.1:8642")
    >>> client
    <PageClient http://127.0.0.1:8642>

    Args:
        url: the address of the page, without a path.
        token: the token of the page; needed for actions.
        timeout_s: how long to wait for an answer.
    """

    def __init__(self, url: str, *, token: str = "", timeout_s: float = TIMEOUT_S) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"{url!r:.200} is not the address of a page", hint="use http://host:port")
        self._url = f"{parts.scheme}://{parts.netloc}"
        self._token = token
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"<PageClient {self._url}>"

    # --- reading

    def summary(self) -> answers.Summary:
        """Return the problems with their root causes, and what runs now."""
        return self._get("summary", answers.Summary)

    def grid(self, after: str = "", limit: int = 50) -> answers.GridPage:
        """Return a page of the last lots of each table."""
        return self._get("grid", answers.GridPage, after=after, limit=limit)

    def tables(self, after: str = "", limit: int = 50) -> answers.TablePage:
        """Return a page of all tables."""
        return self._get("tables", answers.TablePage, after=after, limit=limit)

    def table(self, name: str, version: str = "") -> answers.TableDetail:
        """Return one table."""
        return self._get("table", answers.TableDetail, name=name, version=version)

    def lots(self, table: str, version: str = "", before: str = "", limit: int = 100) -> answers.LotPage:
        """Return a page of a table's lots, newest first."""
        return self._get("lots", answers.LotPage, table=table, version=version, before=before, limit=limit)

    def sample(self, table: str, version: str = "", pipeline: str = "", limit: int = 20) -> answers.RowPage:
        """Return some rows of a table or a view."""
        return self._get(
            "sample", answers.RowPage, table=table, version=version, pipeline=pipeline, limit=limit
        )

    def changes(self, view: str, pipeline: str = "", step: int = 0, limit: int = 50) -> answers.RowPage:
        """Return rows that a step of a view inserted and deleted."""
        return self._get("changes", answers.RowPage, view=view, pipeline=pipeline, step=step, limit=limit)

    def records(self, table: str, version: str = "", limit: int = 50) -> answers.RecordPage:
        """Return records in the quarantine of a table."""
        return self._get("records", answers.RecordPage, table=table, version=version, limit=limit)

    def columns(self, name: str, pipeline: str = "") -> answers.ColumnPage:
        """Return the columns of a view, and the columns that each is computed from."""
        return self._get("columns", answers.ColumnPage, name=name, pipeline=pipeline)

    def health(self) -> answers.HealthPage:
        """Return steps, changed rows, latency and state over time."""
        return self._get("health", answers.HealthPage)

    def runs(self, after: str = "", limit: int = 50) -> answers.RunPage:
        """Return a page of the lots that are running or failed."""
        return self._get("runs", answers.RunPage, after=after, limit=limit)

    def run(self, arc: str, lot: str, generation: int | None = None) -> answers.RunDetail:
        """Return one run, with its attempts and parts."""
        return self._get("run", answers.RunDetail, arc=arc, lot=lot, generation=generation)

    def views(self, after: str = "", limit: int = 50) -> answers.ViewPage:
        """Return a page of all views."""
        return self._get("views", answers.ViewPage, after=after, limit=limit)

    def view(self, name: str, pipeline: str = "") -> answers.ViewDetail:
        """Return one view."""
        return self._get("view", answers.ViewDetail, name=name, pipeline=pipeline)

    def steps(self, view: str, pipeline: str = "", before: str = "", limit: int = 50) -> answers.StepPage:
        """Return a page of a view's steps, newest first."""
        return self._get("steps", answers.StepPage, view=view, pipeline=pipeline, before=before, limit=limit)

    def cluster(self) -> answers.ClusterDetail:
        """Return the nodes, the heap and the schedules."""
        return self._get("cluster", answers.ClusterDetail)

    def triggers(self, name: str = "", after: str = "", limit: int = 100) -> answers.TriggerPage:
        """Return a page of the subscriptions of arcs and view groups."""
        return self._get("triggers", answers.TriggerPage, name=name, after=after, limit=limit)

    def events(
        self,
        severity: str = "",
        about: str = "",
        kind: str = "",
        lot: str = "",
        pipeline: str = "",
        text: str = "",
        before: str = "",
        limit: int = 100,
    ) -> answers.EventPage:
        """Return a page of the event log, newest first."""
        return self._get(
            "events",
            answers.EventPage,
            severity=severity,
            about=about,
            kind=kind,
            lot=lot,
            pipeline=pipeline,
            text=text,
            before=before,
            limit=limit,
        )

    def futures(
        self, state: str = "", name: str = "", before: str = "", limit: int = 100
    ) -> answers.FutureList:
        """Return a page of futures, newest first."""
        return self._get("futures", answers.FutureList, state=state, name=name, before=before, limit=limit)

    def future(self, id: str) -> answers.FutureDetail:  # noqa: A002 - the name in the API
        """Return one future, with its last failure and its lineage."""
        return self._get("future", answers.FutureDetail, id=id)

    def lineage(self) -> answers.Graph:
        """Return the lineage of all tables."""
        return self._get("lineage", answers.Graph)

    # --- acting

    def act(self, action: Action) -> ActionResult:
        """Carry out an action; the page must have a token, and the client too."""
        return self._send("actions", ActionResult, msgspec.json.encode(action))

    def _get(self, path: str, answer: type[T], **parameters: object) -> T:
        query = {name: value for name, value in parameters.items() if value not in ("", None)}
        return self._send(f"{path}?{urllib.parse.urlencode(query)}" if query else path, answer)

    def _send(self, path: str, answer: type[T], body: bytes | None = None) -> T:
        address = f"{self._url}/api/v1/{path}"
        request = urllib.request.Request(address, data=body)  # noqa: S310 - http or https, see __init__
        if body is not None:
            request.add_header("content-type", "application/json")
        if self._token:
            request.add_header("authorization", f"Bearer {self._token}")
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:  # noqa: S310
                return msgspec.json.decode(response.read(), type=answer)
        except urllib.error.HTTPError as error:
            raise self._error(error) from None
        except (OSError, msgspec.MsgspecError) as error:
            raise PageError(f"{self._url} does not answer as expected: {error}") from None

    def _error(self, error: urllib.error.HTTPError) -> PageError:
        try:
            answer = msgspec.json.decode(error.read(), type=ErrorAnswer)
        except (OSError, msgspec.MsgspecError):
            return PageError(f"{self._url} answers with status {error.code}")
        return PageError(f"{answer.message} ({answer.code})", hint=answer.hint or None)


def pages(read: Callable[[str], Any]) -> Iterator[Any]:
    """Yield the items of all pages: `pages(lambda after: client.tables(after))`."""
    cursor = ""
    while True:
        page = read(cursor)
        yield from page.items
        cursor = page.next
        if not cursor:
            return
