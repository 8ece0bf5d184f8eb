"""Ids of attempts: 26 characters that sort as time does, of one length, so that none begins another.

Everything of an attempt lies under names that begin with `attempt={id}`; with ids of one length that finds
nothing of any other attempt.
"""

import random

from tidemill.clock import Clock

_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # without i, l, o and u, which people misread
_TIME_LETTERS = 10
LENGTH = 26


def new_attempt(clock: Clock, chance: random.Random) -> str:
    """An id that nobody else has: milliseconds of the wall clock, then 80 random bits."""
    return _spelled(int(clock.wall() * 1000), _TIME_LETTERS) + _spelled(
        chance.getrandbits(80), LENGTH - _TIME_LETTERS
    )


def _spelled(number: int, letters: int) -> str:
    return "".join(_LETTERS[number >> 5 * place & 31] for place in reversed(range(letters)))
