"""Jars that `make servers` fetches for the tests; users bring their own."""

from pathlib import Path

from tests.servers.process import ServerUnavailable

_CACHE = Path(__file__).parents[3] / ".cache" / "jars"


def fetched(name: str) -> list[Path]:
    """The jars of `jars/{name}/pom.xml`; raise `ServerUnavailable`, with the reason, if they are missing."""
    folder = _CACHE / name
    jars = sorted(folder.glob("*.jar"))
    if not jars or not (folder / ".fetched").exists():
        raise ServerUnavailable(f"no jars of {name}: `make servers` fetches them where Maven can")
    return jars
