"""Several hosts on one machine: network namespaces with their own addresses, names and temporary folders.

A process of a host sees another boot id, another /dev/shm and another host name than the processes of the
other hosts, and reaches them only through the network. So it takes the paths that real hosts take: results
travel over Flight, and nothing is mapped from the memory of another process. The files of the repository and
of the test's folder are the same for all of them, as on a shared disk.

Hosts need root and a kernel with TUN devices. Otherwise `Hosts.start` raises `ServerUnavailable`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from tests.servers.process import Server, ServerFailed, ServerUnavailable
from tests.servers.switch import enter_network
from tidemill.futures.values.flight import TlsCertificate
from tidemill.testing.threads import STUCK_S

ROOT = Path(__file__).resolve().parents[2]

HOLD = """
set -e
mount --make-rprivate /
mount --bind "$1/boot_id" /proc/sys/kernel/random/boot_id
mount --bind "$1/hosts" /etc/hosts
if [ -n "$3" ]; then
  mount -t tmpfs tmpfs /mnt
  mkdir /mnt/kept
  mount --rbind "$3" /mnt/kept
  mount -t tmpfs tmpfs /dev/shm
  mkdir "$3"
  mount --rbind /mnt/kept "$3"
else
  mount -t tmpfs tmpfs /dev/shm
fi
hostname "$2"
echo ready
exec sleep infinity
"""
"""What the holder of a host's namespaces does; it ends when it is killed.

The third argument is the folder of temporary files if it is in /dev/shm: this folder stays visible.
"""

SHARED_MEMORY = Path("/dev/shm")


T = TypeVar("T")


class Host:
    """One host. `prefix` goes before a command that is to run on it."""

    def __init__(self, name: str, address: str, folder: Path, certificate: TlsCertificate) -> None:
        self.name = name
        self.address = address
        self.folder = folder
        self.certificate = certificate
        self._holder: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.folder.mkdir()
        self.folder.chmod(0o755)
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{self.address} {self.name}\n")
        kept = ""
        if self.folder.is_relative_to(SHARED_MEMORY):
            below = Path(tempfile.gettempdir()).relative_to(SHARED_MEMORY)
            if not below.parts:
                raise ServerUnavailable(f"hosts need a TMPDIR that is not {SHARED_MEMORY} itself")
            kept = str(SHARED_MEMORY / below.parts[0])
        self._holder = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig=KILL"),  # it ends with the tests, also if they are killed
                "unshare",
                "--net",
                "--mount",
                "--uts",
                "--kill-child",
                "sh",
                "-c",
                HOLD,
                "-",
                self.folder,
                self.name,
                kept,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            _, reason = self._holder.communicate(timeout=STUCK_S)
            raise ServerUnavailable(f"this machine cannot make hosts: {reason.strip()[-300:]}")

    def stop(self) -> None:
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate(timeout=STUCK_S)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function of this process in the network of the host."""
        with ThreadPoolExecutor(1, initializer=enter_network, initargs=(self.pid,)) as thread:
            return thread.submit(function).result()

    @property
    def pid(self) -> int:
        assert self._holder is not None
        return self._holder.pid

    @property
    def temporary(self) -> Path:
        """The folder for temporary files and caches of processes on this host."""
        return self.folder / "tmp"

    @property
    def prefix(self) -> list[str]:
        return self.at(ROOT)

    def at(self, folder: Path) -> list[str]:
        """What goes before a command that is to run on this host, in a folder."""
        return ["nsenter", f"--target={self.pid}", "--net", "--mount", "--uts", f"--wdns={folder}"]

    @property
    def environment(self) -> dict[str, str]:
        """What a process on this host has in its environment."""
        place = str(self.temporary)
        return {
            "TMPDIR": place,
            "XDG_CACHE_HOME": place,
            "HOSTNAME": self.name,
            "SPARK_LOCAL_IP": self.address,
        }


class Hosts(Server):
    """Hosts with a switch between them, from `start()` (or `with`) until `stop()`."""

    def __init__(self, *names: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-hosts-"))
        addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
        self.certificate = TlsCertificate(self._folder / "chain.pem", self._folder / "key.pem")
        self.all = [
            Host(name, address, self._folder / name, self.certificate) for name, address in addresses.items()
        ]
        self._switch: subprocess.Popen[str] | None = None

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.all if host.name == name)

    def start(self) -> None:
        missing = [
            tool for tool in ("ip", "nsenter", "openssl", "setpriv", "unshare") if shutil.which(tool) is None
        ]
        if os.geteuid() != 0 or missing or not Path("/dev/net/tun").exists():
            reason = f"there is no {missing[0]}" if missing else "this needs root and /dev/net/tun"
            raise ServerUnavailable(f"this machine cannot make hosts: {reason}")
        self._folder.chmod(0o755)
        self._make_certificate()
        for host in self.all:
            host.start()
        places = [f"{host.pid}:{host.address}" for host in self.all]
        self._switch = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.switch", *places],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._expect("ready\n")

    def stop(self) -> None:
        """End the hosts, with everything that still runs on them."""
        if self._switch is not None:
            self._switch.kill()
            self._switch.communicate(timeout=STUCK_S)
        for host in self.all:
            host.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make_certificate(self) -> None:
        """Make one certificate for all hosts, which trust it."""
        names = ",".join(f"IP:{host.address}" for host in self.all)
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
                *("-nodes", "-days", "2", "-subj", "/CN=hosts", "-addext", f"subjectAltName={names}"),
                *("-keyout", self.certificate.key, "-out", self.certificate.chain),
            ],
            check=True,
            capture_output=True,
        )

    # --- links

    def delay(self, seconds: float) -> None:
        """Let every packet arrive this much later."""
        self._say(f"delay {seconds}\n")

    def cut(self, name: str) -> None:
        """Cut a host off: no packet reaches it, and none of its packets arrives."""
        self._say(f"cut {self[name].address}\n")

    def heal(self, name: str) -> None:
        """Connect a host again."""
        self._say(f"heal {self[name].address}\n")

    def _say(self, line: str) -> None:
        assert self._switch is not None
        assert self._switch.stdin is not None
        self._switch.stdin.write(line)
        self._switch.stdin.flush()
        self._expect(line)

    def _expect(self, line: str) -> None:
        assert self._switch is not None
        assert self._switch.stdout is not None
        if self._switch.stdout.readline() != line:
            self._switch.kill()
            raise ServerFailed(f"the switch ended: {self._switch.communicate(timeout=STUCK_S)[1][-2000:]}")
