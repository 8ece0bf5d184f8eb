"""Where alerts go: a webhook or a command.

A hook may have secrets in its URL, its headers or its arguments. They stay in the user's file and in the
memory of the processes that import it: neither the store nor a log nor a page gets them.
"""

import subprocess
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec

from tidemill.errors import DeclarationError, UsageError
from tidemill.store.secret_references import dereferenced, is_reference

TIMEOUT_S = 10.0
AlertKind = Literal["failure", "stale", "fresh"]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook gets.

    - kind: `failure`; `stale`: a table is older than its `fresh_within`; `fresh`: it is not any more.
    - name: the arc, source, view group or table.
    - text: what happened, as a sentence.
    - at: when it happened, in seconds since 1970.
    - lot: the lot or step that failed.
    - id: the same for each attempt to send this alert.
    """

    kind: AlertKind
    pipeline: str
    name: str
    text: str
    at: float
    lot: str = ""
    id: str = ""


class HookFailed(Exception):
    """A hook did not take an alert. The message has no secret."""


class Hook(ABC):
    """Sends an alert, or raises `HookFailed`."""

    @property
    @abstractmethod
    def label(self) -> str:
        """A description without secrets."""

    @abstractmethod
    def send(self, alert: Alert) -> None: ...

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label}>"


@dataclass(frozen=True, kw_only=True, repr=False)
class Webhook(Hook):
    """A URL that gets each alert as a POST request with a JSON body."""

    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(repr=False, default=())
    timeout_s: float = TIMEOUT_S

    @property
    def label(self) -> str:
        """The host only: many services put a secret into the path."""
        if is_reference(self.url):
            return self.url
        return f"{urlsplit(self.url).scheme}://{urlsplit(self.url).hostname}"

    def send(self, alert: Alert) -> None:
        body = msgspec.json.encode({**msgspec.to_builtins(alert), "message": _sentence(alert)})
        try:
            own = {name: dereferenced(value) for name, value in self.headers}
            url = dereferenced(self.url)
        except UsageError as error:
            raise HookFailed(error.message) from None
        if not _is_web(url):
            raise HookFailed(f"{self.label} is not an http or https URL")
        headers = {"Content-Type": "application/json", **own}
        request = urllib.request.Request(url, body, headers, method="POST")  # noqa: S310 - http(s) only
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s):  # noqa: S310
                return
        except urllib.error.HTTPError as error:
            error.close()
            raise HookFailed(f"{self.label} answered {error.code}") from None
        except (OSError, ValueError) as error:
            raise HookFailed(f"{self.label}: {type(error).__name__}") from None


@dataclass(frozen=True, kw_only=True, repr=False)
class Command(Hook):
    """A program that gets each alert as JSON on its standard input."""

    arguments: tuple[str, ...] = field(repr=False)
    timeout_s: float = TIMEOUT_S

    @property
    def label(self) -> str:
        """The program, without its arguments."""
        return self.arguments[0]

    def send(self, alert: Alert) -> None:
        try:
            done = subprocess.run(
                self.arguments,
                input=msgspec.json.encode(alert),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HookFailed(f"{self.label} did not end within {self.timeout_s:g} s") from None
        except OSError as error:
            raise HookFailed(f"{self.label} cannot be started: {error.strerror}") from None
        if done.returncode:
            raise HookFailed(f"{self.label} ended with exit code {done.returncode}")


Hooks: TypeAlias = Hook | Sequence[Hook]


def webhook(url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S) -> Webhook:
    """Send alerts to a URL, as POST requests with a JSON body.

    The body has the fields of the alert, and `message`: one sentence with all of them.

    >>> import tidemill as tm
    >>> tm.webhook("https://hooks.example/services/a-secret")
    <Webhook https://hooks.example>

    Args:
        url: the address; it may contain a secret, which is never shown. `env:NAME` and `file:PATH` name an
            environment variable or a file with the address.
        headers: more headers, such as `Authorization`; their values can be references too.
        timeout_s: how long to wait for the answer.
    """
    if not is_reference(url) and not _is_web(url):
        raise DeclarationError(
            "a webhook needs an http or https URL", hint="pass a URL like https://host/path"
        )
    return Webhook(url=url, headers=tuple((headers or {}).items()), timeout_s=timeout_s)


def _is_web(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def command(arguments: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> Command:
    """Start a program for each alert, which gets the alert as JSON on its standard input.

    >>> import tidemill as tm
    >>> tm.command(["notify-send", "Tidemill"])
    <Command notify-send>

    Args:
        arguments: the program and its arguments; no shell is used.
        timeout_s: how long the program may take.
    """
    if isinstance(arguments, str) or not arguments:
        raise DeclarationError("a command is a list of arguments", hint='pass a list like ["mail", "ops"]')
    return Command(arguments=tuple(map(str, arguments)), timeout_s=timeout_s)


def hooks_of(name: str, hooks: Hooks) -> tuple[Hook, ...]:
    """Return hooks as a tuple; raise `DeclarationError` if one of them is not a hook."""
    chosen = (hooks,) if isinstance(hooks, Hook) else tuple(hooks)
    for hook in chosen:
        if not isinstance(hook, Hook):
            raise DeclarationError(
                f"{name}= has a {type(hook).__name__}, which is not a hook",
                hint="pass tm.webhook(…) or tm.command([…])",
            )
    return chosen


def _sentence(alert: Alert) -> str:
    lot = f" (lot {alert.lot})" if alert.lot else ""
    return f"{alert.kind.upper()} {alert.pipeline}/{alert.name}{lot}: {alert.text}"
