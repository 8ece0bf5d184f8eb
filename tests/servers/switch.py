"""A switch between hosts: it passes packets on, late if it was told so, or not at all while a link is cut.

    python -m tests.servers.switch HOLDER_PID:ADDRESS ...

Each holder is a process in the network namespace of one host. The switch gives every namespace a network
card (a TUN device) and moves the packets between them itself, because not every kernel has the module that
delays packets. Commands are lines on standard input: `delay SECONDS`, `cut ADDRESS`, `heal ADDRESS`. The
switch answers each with the same line, and ends when its input ends.
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import os
import select
import socket
import struct
import subprocess
import sys

from tidemill.clock import SYSTEM

MTU = 60_000  # few large packets: each costs this process some time
NET_BITS = 24
MOST_WAITING = 20_000  # packets; a real link also drops what it cannot hold
_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000


def enter_network(pid: int) -> None:
    """Let this thread use the network of a process."""
    with open(f"/proc/{pid}/ns/net", "rb") as namespace:  # noqa: PTH123 - a namespace, not a file
        if _LIBC.setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "the namespace cannot be entered")


def card(pid: int, address: str) -> int:
    """Make the network card of the namespace of a process; return its file descriptor."""
    enter_network(pid)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", b"eth0", _IFF_TUN | _IFF_NO_PI))
    for words in (
        ["addr", "add", f"{address}/{NET_BITS}", "dev", "eth0"],
        ["link", "set", "eth0", "mtu", str(MTU), "up"],
        ["link", "set", "lo", "up"],
    ):
        subprocess.run(["ip", *words], check=True)
    return device


class Switch:
    """Moves packets between cards."""

    def __init__(self, cards: dict[bytes, int]) -> None:
        self._cards = cards
        self._delay_s = 0.0
        self._cut: set[bytes] = set()
        self._waiting: list[tuple[float, int, bytes]] = []
        self._number = itertools.count()

    def run(self) -> None:
        """Move packets until standard input ends."""
        poller = select.poll()
        for device in (*self._cards.values(), sys.stdin.fileno()):
            poller.register(device, select.POLLIN)
        while True:
            wait_ms = max(0.0, self._waiting[0][0] - SYSTEM.monotonic()) * 1000 if self._waiting else None
            for device, _ in poller.poll(wait_ms):
                if device == sys.stdin.fileno():
                    line = os.read(sys.stdin.fileno(), 1000)  # one command: each waits for its answer
                    if not line:
                        return
                    self._obey(line.decode().split())
                    os.write(sys.stdout.fileno(), line)
                else:
                    self._receive(device)
            while self._waiting and self._waiting[0][0] <= SYSTEM.monotonic():
                self._pass_on(heapq.heappop(self._waiting)[2])

    def _obey(self, words: list[str]) -> None:
        match words:
            case ["delay", seconds]:
                self._delay_s = float(seconds)
            case ["cut", address]:
                self._cut.add(socket.inet_aton(address))
            case ["heal", address]:
                self._cut.discard(socket.inet_aton(address))

    def _receive(self, device: int) -> None:
        for _ in range(64):
            try:
                packet = os.read(device, MTU + 64)
            except BlockingIOError:
                return
            if not self._delay_s:
                self._pass_on(packet)
            elif len(self._waiting) < MOST_WAITING:
                at = SYSTEM.monotonic() + self._delay_s
                heapq.heappush(self._waiting, (at, next(self._number), packet))

    def _pass_on(self, packet: bytes) -> None:
        source, target = packet[12:16], packet[16:20]
        if packet[0] >> 4 != 4 or target not in self._cards or self._cut & {source, target}:
            return
        with contextlib.suppress(BlockingIOError):  # lost, as on a busy link: TCP sends it again
            os.write(self._cards[target], packet)


def main() -> None:
    cards = {}
    for argument in sys.argv[1:]:
        pid, _, address = argument.partition(":")
        cards[socket.inet_aton(address)] = card(int(pid), address)
    os.write(sys.stdout.fileno(), b"ready\n")
    Switch(cards).run()


if __name__ == "__main__":
    main()
