"""Reduces a failing case: removes parts of it as long as it still fails."""

from collections.abc import Callable, Iterator
from typing import Any

Case = Any


def shrink(case: Case, fails: Callable[[Case], bool], tries: int) -> Case:
    """Return a smaller case that still fails, after at most `tries` attempts."""
    progress = True
    while progress:
        progress = False
        for smaller in _smaller(case):
            if tries <= 0:
                return case
            tries -= 1
            if fails(smaller):
                case, progress = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases with one part less, the largest parts first."""
    match case:
        case str() | bytes() | list() | tuple():
            size = len(case) // 2 or len(case)
            while size:
                for start in range(0, len(case), size):
                    yield case[:start] + case[start + size :]
                size //= 2
            if isinstance(case, list | tuple):
                for number, item in enumerate(case):
                    for smaller in _smaller(item):
                        yield type(case)([*case[:number], smaller, *case[number + 1 :]])
        case dict():
            for name in case:
                yield {other: value for other, value in case.items() if other != name}
            for name, value in case.items():
                for smaller in _smaller(value):
                    yield {**case, name: smaller}
