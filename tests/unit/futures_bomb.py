"""A value that tells when it is unpickled: forged things must never be."""

from typing import Any

exploded: list[str] = []


class Bomb:
    def __init__(self, label: str, padding: int = 0) -> None:
        self.label = label
        self.padding = bytes(padding)

    def __reduce__(self) -> Any:
        return _explode, (self.label, self.padding)


def _explode(label: str, padding: bytes) -> Bomb:
    exploded.append(label)
    return Bomb(label, len(padding))
