"""The program that conformance tests run in child processes: `python -m tidemill.testing.objects_writer`.

    race N    wait for a line, create race/0 to race/N-1, print the result of each as JSON
    write X   write objects of all sizes until killed, print each key after its write is confirmed

A body begins with its writer, its length and its digest, so a test can tell whether the body is complete.
"""

import hashlib
import json
import os
import random
import sys

from tidemill import crash
from tidemill.clock import SYSTEM
from tidemill.objects import Objects, open_objects

URL = "TIDEMILL_OBJECTS_URL"


def body_of(owner: str, payload: bytes) -> bytes:
    """Return a body with its length and digest, so that `whole` can tell whether it is complete."""
    return f"{owner}:{len(payload)}:{hashlib.sha256(payload).hexdigest()}:".encode() + payload


def whole(body: bytes) -> bool:
    """Return whether a body is complete."""
    parts = body.split(b":", 3)
    if len(parts) != 4:
        return False
    payload = parts[3]
    return int(parts[1]) == len(payload) and parts[2].decode() == hashlib.sha256(payload).hexdigest()


def race(objects: Objects, count: int) -> None:
    """Try to create objects while other processes try to create the same ones."""
    _say("ready")
    sys.stdin.readline()
    answers: list[str] = []
    for number in range(count):
        body = body_of(f"{os.getpid()}", b"%d by %d" % (number, os.getpid()))
        answers.append(objects.put_if_absent(f"race/{number}", body, body.split(b":")[2]).value)
    _say(json.dumps(answers))


def write(objects: Objects, name: str) -> None:
    """Write until killed: new keys and existing keys, with and without conditions."""
    chance = random.Random(name)
    for turn in range(1_000_000):
        payload = chance.randbytes(chance.choice([0, 100, 5_000, 300_000]))
        body = body_of(f"{name}-{turn:08d}", payload)
        key = f"w/{name}/{turn}"
        match turn % 4:
            case 0:
                objects.put(key, body)
            case 1:
                key = f"w/{name}/replaced"
                objects.put(key, body)
            case 2:
                objects.put_if_absent(key, body, f"{name}-{turn:08d}".encode())
            case _:
                key = f"w/{name}/replaced"
                objects.put_if_match(key, body, objects.head(key).etag)
        _say(key)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run the command. The environment variable `TIDEMILL_OBJECTS_URL` has the URL of the storage."""
    crash.arm_from_environment()
    command, argument = sys.argv[1:]
    objects = open_objects(os.environ[URL], clock=SYSTEM, probe=False)
    if command == "race":
        race(objects, int(argument))
    else:
        write(objects, argument)


if __name__ == "__main__":
    main()
