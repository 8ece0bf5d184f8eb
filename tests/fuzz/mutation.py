"""Random values, and small changes to bytes, texts and values, of the kinds that broke programs before."""

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any


def listed(text: str) -> list[str]:
    """Return the words of a text, which are separated by blanks or, if it has any, by bars."""
    return text.replace("\n", "|").strip("|").split("|") if "|" in text else text.split()


TEXTS = [
    *("", " ", "\0", "a\0b", "\ud800", "\udc00x", "\ud83d\ude00", "\u202eabc", "e\u0301", "\ufeff", "\u0085"),
    *("\n", "\r\n", "\t", "x" * 300, "x" * 5000, "é" * 700, "n" * 2049, "9" * 5000, "1" * 40),
    *listed(r"""
' " ` `` \ /* */ ; % %00 $ .. / // ../x é NULL null NaN Infinity -Infinity sNaN true 0 -0 1e400 0x10 1_000 १
２ 2024-01-01 2024-02-30 0000-01-01 9999-12-31 10000-01-01 9999999-01-01 -0001-01-01 2024-01-01T00:00:00Z
2024-01-01T00:00:00+99:00 2024-01-01T24:00:00 2024-01-01T23:59:60Z 1970-01-01T00:00:00.123456789Z 12:30:00
24:00:00 12:30:00.1234567 P1D P1Y [red]x[/red] {} [] {0} %s ${x} _weight _rescued ID
"""),
    *("-- ", "INTERVAL '1' DAY", "1 02:03:04", "id "),
    # for regular expressions and parsers that call themselves for each character
    *('} x"' * 4000, "[{" * 3000, "\\" * 5001, "} \\u" * 3000),
]
NUMBERS = [
    *(0, -1, 1, 2, 7, 127, 128, 255, 256, -129, 32768, 65535, 65536, 2**31 - 1, 2**31, -(2**31) - 1, 2**32),
    *(2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**38, 10**39, -(10**300)),
    *(10**4000, 0.1, -0.0, 1.5, 1e-320, 1e30, 1.7e308, float("inf"), float("-inf"), float("nan")),
]


def text(rng: random.Random) -> str:
    """Return a text, often an awkward one."""
    if rng.random() < 0.7:
        return rng.choice(TEXTS)
    letters = "abcxyz_0123456789 .,:/'\"`\\éß漢\U0001f600"
    return "".join(rng.choices(letters, k=rng.randrange(12)))


def value(rng: random.Random, depth: int = 3) -> Any:
    """Return a value that JSON has, and some that only Python's parser takes."""
    kind = rng.randrange(10 if depth else 6)
    if kind < 2:
        return text(rng)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind < 6:
        return rng.choice((None, True, False))
    if kind < 8:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    names = ("a", "b", "key", "value", text(rng))
    return {rng.choice(names): value(rng, depth - 1) for _ in range(rng.randrange(4))}


def nested(rng: random.Random) -> Any:
    """Return a value that is nested deeply."""
    inner: Any = 1
    for _ in range(rng.choice((5, 50, 99, 100, 101, 200, 900))):
        inner = [inner] if rng.random() < 0.5 else {"a": inner}
    return inner


def mutated_value(rng: random.Random, given: Any) -> Any:
    """Change a value in one place: replace, remove, repeat, wrap or rename a part of it."""
    parts = list(_parts(given, ()))
    path = rng.choice(parts)
    change = rng.choice((_replace, _replace, _remove, _repeat, _wrap, _rename, _swap))
    return _at(given, path, lambda part: change(rng, part))


def _parts(given: Any, path: tuple[Any, ...]) -> Any:
    yield path
    items = given.items() if isinstance(given, dict) else enumerate(given) if isinstance(given, list) else ()
    for name, inner in items:
        yield from _parts(inner, (*path, name))


def _at(given: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(given)
    copy = dict(given) if isinstance(given, dict) else list(given)
    copy[path[0]] = _at(copy[path[0]], path[1:], change)
    return copy


def _replace(rng: random.Random, _: Any) -> Any:
    return nested(rng) if rng.random() < 0.03 else value(rng)


def _remove(rng: random.Random, part: Any) -> Any:
    if isinstance(part, dict) and part:
        gone = rng.choice(list(part))
        return {name: inner for name, inner in part.items() if name != gone}
    if isinstance(part, list) and part:
        gone = rng.randrange(len(part))
        return part[:gone] + part[gone + 1 :]
    return None


def _repeat(rng: random.Random, part: Any) -> Any:
    if isinstance(part, str | list):
        return part * rng.choice((2, 3, 100))
    if isinstance(part, int) and not isinstance(part, bool):
        return part * rng.choice((-1, 2, 1000, 2**32))
    return [part, part]


def _wrap(rng: random.Random, part: Any) -> Any:
    return rng.choice(
        ([part], {"a": part}, [[part]], json.dumps(part, default=str), {"key": part, "value": part})
    )


def _rename(rng: random.Random, part: Any) -> Any:
    if isinstance(part, dict) and part:
        old = rng.choice(list(part))
        return {(text(rng) if name == old else name): inner for name, inner in part.items()}
    return _replace(rng, part)


def _swap(rng: random.Random, part: Any) -> Any:
    if isinstance(part, dict) and len(part) > 1:
        values = list(part.values())
        rng.shuffle(values)
        return dict(zip(part, values, strict=True))
    if isinstance(part, list) and len(part) > 1:
        return rng.sample(part, len(part))
    return part


def json_text(rng: random.Random, given: Any) -> bytes:
    """Encode a value as JSON, sometimes in an unusual way, and sometimes wrongly."""
    encoded = json.dumps(given, ensure_ascii=rng.random() < 0.5, default=str)
    if rng.random() < 0.05 and isinstance(given, dict) and given:
        name = rng.choice(list(given))
        encoded = encoded[:-1] + f", {json.dumps(name)}: {json.dumps(value(rng))}}}"  # a name twice
    if rng.random() < 0.03:
        encoded = rng.choice(("\ufeff", " ", "\t")) + encoded
    codec = rng.choice(("utf-16", "utf-8-sig", "utf-32-le", "latin-1")) if rng.random() < 0.03 else "utf-8"
    data = encoded.encode(codec, "surrogatepass" if codec != "latin-1" and rng.random() < 0.5 else "replace")
    return damaged(rng, data) if rng.random() < 0.1 else data


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Change some bytes: flip, overwrite, insert, remove, repeat, exchange, cut off."""
    changed = bytearray(data)
    in_place = rng.random() < 0.5  # keeps the structure of binary formats
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        place = rng.randrange(len(changed) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 16, 64))
        match rng.choice((0, 2, 7)) if in_place else rng.randrange(9):
            case 0 | 1 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 2 if place < len(changed):
                changed[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x0A))
            case 3:
                changed[place:place] = rng.randbytes(size)
            case 4:
                del changed[place : place + size]
            case 5:
                changed[place:place] = changed[place : place + size] * rng.choice((1, 2, 20))
            case 6:
                other = rng.randrange(len(changed) + 1)
                changed[place : place + size] = changed[other : other + size]
            case 7:
                number = rng.choice((0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 2**32, 65536))
                packed = struct.pack("<q", number)[: rng.choice((2, 4, 8))]
                place -= place % len(packed)
                changed[place : place + len(packed)] = packed[: len(changed) - place]
            case 8 if rng.random() < 0.4:
                del changed[place:]
    return bytes(changed)


def mutated_text(rng: random.Random, given: str, words: Sequence[str] = ()) -> str:
    """Change a text: remove, repeat, exchange or insert words and characters."""
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        tokens = _tokens(given)
        place = rng.randrange(len(tokens) + 1)
        match rng.randrange(8):
            case 0:
                del tokens[place : place + rng.choice((1, 1, 2, 5))]
            case 1:
                tokens[place:place] = tokens[place : place + rng.choice((1, 2, 8))]
            case 2 if len(tokens) > 1:
                first, second = rng.sample(range(len(tokens)), 2)
                tokens[first], tokens[second] = tokens[second], tokens[first]
            case 3:
                tokens.insert(place, text(rng))
            case 4 if words:
                tokens.insert(place, f" {rng.choice(words)} ")
            case 5 if words and place < len(tokens):
                tokens[place] = rng.choice(words)
            case 6 if place < len(tokens):
                tokens[place] = text(rng)
            case 7 if place < len(tokens) and rng.random() < 0.2:
                times = rng.choice((3, 50, 400))
                tokens[place] = "(" * times + tokens[place] + ")" * times
        given = "".join(tokens)
    return given


def _tokens(given: str) -> list[str]:
    tokens: list[str] = []
    for letter in given:
        if (
            tokens
            and (letter.isalnum() or letter == "_")
            and (tokens[-1][-1:].isalnum() or tokens[-1][-1:] == "_")
        ):
            tokens[-1] += letter
        else:
            tokens.append(letter)
    return tokens
