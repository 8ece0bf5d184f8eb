"""Write numbers, times and links for people, in the templates of the page."""

from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import urlencode

from tidemill.ui.model.answers import RowPage


def number(value: float) -> str:
    """Write a number with separators.

    >>> number(1234567)
    '1,234,567'
    """
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Write a number of bytes.

    >>> size(1_500_000)
    '1.5 MB'
    """
    for least, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= least:
            return f"{value / least:.1f} {unit}"
    return f"{value:.0f} B"


def duration(seconds: float) -> str:
    """Write a duration in its largest unit.

    >>> duration(95), duration(0.042), duration(7200)
    ('1.6 min', '42 ms', '2 h')
    """
    value = abs(seconds)
    for least, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if value >= least:
            return f"{_short(value / least)} {unit}"
    if value >= 1:
        return f"{_short(value)} s"
    return f"{value * 1000:.0f} ms" if value >= 0.01 or not value else f"{_short(value * 1000)} ms"


def _short(value: float) -> str:
    """Write a number with at most one decimal place."""
    return f"{value:.1f}".removesuffix(".0")


def ago(at: float, now: float) -> str:
    """Write how long ago a time was.

    >>> ago(0, 100), ago(40, 100), ago(100, 100)
    ('never', '1 min ago', 'just now')
    """
    if not at:
        return "never"
    return "just now" if now - at < 1 else f"{duration(now - at)} ago"


def moment(at: float) -> str:
    """Write a time in UTC.

    >>> moment(0.0)
    ''
    """
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if at else ""


def time_of(at: float, now: float) -> str:
    """Write the time of day of an event in UTC, with the day if it was not today.

    >>> time_of(90.0, 100.0), time_of(90.0, 100_000.0)
    ('00:01:30', '1 Jan 00:01')
    """
    then = datetime.fromtimestamp(at, UTC)
    if then.date() == datetime.fromtimestamp(now, UTC).date():
        return then.strftime("%H:%M:%S")
    return f"{then.day} {then.strftime('%b %H:%M')}"


def numeric_columns(page: RowPage) -> frozenset[str]:
    """Return the columns of a table of rows whose values are all numbers.

    >>> sorted(numeric_columns(RowPage(columns=("id", "day"), rows=(("1", "2026-03-02"), (None, None)))))
    ['id']
    """
    columns = zip(page.columns, zip(*page.rows, strict=True), strict=True) if page.rows else ()
    return frozenset(
        name for name, values in columns if any(values) and all(map(_is_number, filter(None, values)))
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def link(path: str, parameters: Mapping[str, object]) -> str:
    """Return the address of a screen; empty parameters are left out.

    >>> link("/table", {"name": "a&b", "version": ""})
    '/table?name=a%26b'
    """
    query = urlencode({name: value for name, value in parameters.items() if value not in ("", None)})
    return f"{path}?{query}" if query else path


def short(text: str, length: int = 12) -> str:
    """Return the beginning of an id.

    >>> short("0123456789abcdef")
    '0123456789ab'
    """
    return text[:length]
