r"""Check JSON that other programs sent, before it is converted to rows.

Python's parser accepts JSON that Tidemill cannot store or process: half of a surrogate pair (`"\ud800"`), and
values that are nested so deeply that later steps exceed the recursion limit.
"""

import json
import re
from typing import Any, Final

from tidemill.errors import AppendRefused

MOST_LEVELS: Final = 100
"""How deep the arrays and objects of a record may be nested."""

_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_SPACE: Final = frozenset(" \t\n\r")


def check_object(value: dict[str, Any]) -> dict[str, Any]:
    """Return a parsed JSON object; raise `AppendRefused` if it can't be stored."""
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS):
        inner: list[Any] = []
        for parent in level:
            if isinstance(parent, dict):
                for name in parent:
                    _check_text(name)
            for child in parent.values() if isinstance(parent, dict) else parent:
                if isinstance(child, str):
                    _check_text(child)
                elif isinstance(child, dict | list):
                    inner.append(child)
        if not inner:
            return value
        level = inner
    raise AppendRefused(
        f"the record is nested more than {MOST_LEVELS} levels deep",
        hint="send deeply nested values as strings that contain JSON",
    )


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AppendRefused(
            f"the text {text!a:.80} has half of a surrogate pair at character {error.start + 1}",
            hint="send valid Unicode",
        ) from None


def split_items(body: bytes) -> list[bytes]:
    """Return the texts of the items of a JSON array, or the text of any other JSON value.

    Raise `ValueError` if the body is not JSON.
    """
    text = body.decode(json.detect_encoding(body), "surrogatepass")
    decode = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode  # a number of any length
    place = _skip_space(text, 0)
    if text[place : place + 1] != "[":
        spans = [_span(decode, text, place)]
        end = _skip_space(text, spans[0][1])
    else:
        spans, end = [], _skip_space(text, place + 1)
        while text[end : end + 1] != "]" or spans:
            spans.append(_span(decode, text, end))
            end = _skip_space(text, spans[-1][1])
            if text[end : end + 1] != ",":
                break
            end = _skip_space(text, end + 1)
        if text[end : end + 1] != "]":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, end)
        end = _skip_space(text, end + 1)
    if end != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return [text[first:last].encode("utf-8", "surrogatepass") for first, last in spans]


def _span(decode: Any, text: str, first: int) -> tuple[int, int]:
    try:
        _, last = decode(text, first)
    except RecursionError:  # it is nested too deeply, but the other items may be good
        last = _closing_bracket(text, first)
    return first, last


def _closing_bracket(text: str, first: int) -> int:
    """Return the end of an array or object of any depth."""
    depth = 0
    for token in _BRACKET.finditer(text, first):
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth == 0:
            return token.end()
    raise json.JSONDecodeError("Unterminated array or object", text, first)


def _skip_space(text: str, place: int) -> int:
    while text[place : place + 1] in _SPACE and place < len(text):
        place += 1
    return place
