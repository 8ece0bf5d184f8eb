"""Run a command as a starved machine would: its processes are paused at random, one or several at a time.

    python -m tests.starve --seed 7 -- python -m pytest tests/integration/test_worker_lease.py

A test that passes alone and fails here depends on how fast the machine is. Each pause stops some of the
command's processes (SIGSTOP) for up to `--most-s` seconds, so that leases lapse, timeouts pass and threads
meet in unusual orders. `--hogs` adds processes that keep the cores busy. Processes that a test stopped are
left alone.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys

import psutil

from tidemill.clock import SYSTEM

HOG = "while True: pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--most-s", type=float, default=4.0, help="the longest pause")
    parser.add_argument("--every-s", type=float, default=1.0, help="the mean time between pauses")
    parser.add_argument("--hogs", type=int, default=0, help="processes that only use the processor")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    sys.stderr.write(f"seed {given.seed}\n")
    chance = random.Random(given.seed)
    hogs = [subprocess.Popen([sys.executable, "-c", HOG]) for _ in range(given.hogs)]
    process = subprocess.Popen(given.command)
    try:
        while process.poll() is None:
            SYSTEM.sleep(chance.expovariate(1 / given.every_s))
            pause(process.pid, chance, given.most_s)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
    finally:
        for hog in hogs:
            hog.kill()
    return process.wait()


def pause(root: int, chance: random.Random, most_s: float) -> None:
    """Stop one process of the tree, some of them, or all; let them go on after a while."""
    with contextlib.suppress(psutil.Error):
        tree = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
        chosen = chance.sample(tree, chance.choice((1, 1, (len(tree) + 1) // 2, len(tree))))
        stopped = [each.pid for each in chosen if stop(each)]
        try:
            SYSTEM.sleep(most_s * chance.random() ** 2)  # short pauses are the common ones
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def stop(process: psutil.Process) -> bool:
    """True when it ran and is stopped now."""
    try:
        if process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            return False
        process.suspend()
    except psutil.Error:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
