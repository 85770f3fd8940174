"""A PostgreSQL server of one's own: Debian's binaries, a folder of its own, an unprivileged user, a free port."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

PASSWORD = "S3cret-of-the-Study"
USER = "workbench"
_PATIENCE_SECONDS = 60.0


def find_binaries() -> Path | None:
    """Return the folder of the newest PostgreSQL on this machine, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    elsewhere = shutil.which("initdb")
    return None if elsewhere is None else Path(elsewhere).parent


class PostgresServer:
    """A running server; use it as a context manager.

    Args:
        binaries: Folder with ``initdb`` and ``postgres``.
    """

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="workbench-postgres-"))
        self._data = self._folder / "data"
        self._user = _unprivileged_user()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    def __enter__(self) -> PostgresServer:
        password = self._folder / "password"
        password.write_text(PASSWORD, encoding="utf-8")
        if self._user is not None:
            for path in (self._folder, password):
                shutil.chown(path, self._user)
        initdb = [self._binaries / "initdb", "-D", self._data, "-U", USER, "--no-sync", "--encoding=UTF8"]
        self._run([*initdb, "--locale=C", "--auth=scram-sha-256", f"--pwfile={password}"])
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        options = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "60",
            "fsync": "off",  # it is killed here, the machine is not
            "shared_buffers": "16MB",
        }
        told = [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._data, "-p", str(self.port), *told],
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._folder,
                start_new_session=True,
            )
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not self.answers():
            assert self._process.poll() is None, (self._folder / "log").read_text(errors="replace")
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.05)

    def answers(self) -> bool:
        """Return whether the server takes connections."""
        import psycopg  # here, because tests are collected without it, too

        try:
            psycopg.connect(self._address("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Stop the server in an orderly way, as an administrator who restarts it does."""
        self._end(signal.SIGINT)  # "fast": connections are cut

    def kill(self) -> None:
        """Kill every process of the server, as a machine that loses power does."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def new_database(self) -> str:
        """Create an empty database and return its URL, with the password in it."""
        import psycopg
        from psycopg import sql

        name = f"study_{secrets.token_hex(4)}"
        with psycopg.connect(self._address("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return f"postgresql+psycopg://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def _address(self, database: str) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def _run(self, command: list[str | Path]) -> None:
        done = subprocess.run(command, user=self._user, cwd=self._folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def _unprivileged_user() -> str | None:
    """Return whom the server runs as; None for the present user. PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
