"""Real databases for the tests, on free ports of this machine."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from servers import free_port
from shell import ok

USER, PASSWORD = "clerk", "cold-as-ice-7"
NOBODY = "nobody"  # PostgreSQL refuses to run as root


class Postgres:
    """A cluster of its own, thrown away at the end."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._folder = programs, folder
        self._port = free_port()
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        self._do(
            "initdb",
            *("-D", folder / "data", "-U", USER, "-A", "scram-sha-256"),
            *(f"--pwfile={folder / 'password'}", "--no-sync", "-E", "UTF8"),
            "--locale=C",
        )
        self.start()

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self._port}/postgres"

    @property
    def credentials(self) -> dict[str, str]:
        return {"url": self.url, "user": USER, "password": PASSWORD}

    def start(self) -> None:
        listens = f"-p {self._port} -c listen_addresses=127.0.0.1 -c fsync=off"
        sockets = f"-c unix_socket_directories={self._folder}"
        log = self._folder / "log"
        options = f"{listens} {sockets} -c deadlock_timeout=2s"
        self._control("start", "-w", "-l", log, "-o", options)

    def stop(self) -> None:
        """End it at once, as when the machine that it runs on restarts."""
        self._control("stop", "-m", "immediate")

    def connect(self) -> psycopg.Connection:
        given = {k: v for k, v in self.credentials.items() if k != "url"}
        return psycopg.connect(self.url.removeprefix("jdbc:"), **given)

    def do(self, *statements: str) -> None:
        with self.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection:
            return connection.execute(query).fetchall()

    def _control(self, *arguments: Any) -> None:
        self._do("pg_ctl", "-D", self._folder / "data", *arguments)

    def _do(self, program: str, *arguments: Any) -> None:
        as_nobody = ["setpriv", f"--reuid={NOBODY}", "--clear-groups"]
        prefix = as_nobody if os.geteuid() == 0 else []
        ok(*prefix, self._programs / program, *arguments, cwd=self._folder)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Start PostgreSQL, if there is one on this machine."""
    beside = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = shutil.which("initdb") or (beside and beside[-1])
    if not found:
        pytest.skip("PostgreSQL is not installed (Debian, Ubuntu: postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, NOBODY)
    try:
        server = Postgres(Path(found).parent, folder)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
