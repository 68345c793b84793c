#!/usr/bin/env python3
"""A PostgreSQL server of a test's own: the distribution's, on a Unix socket, as a user that is not
root.

postgres.py start FILE    makes one, and writes to FILE where it is: a URL, and its directory
postgres.py stop FILE     ends it; it is no mistake that there is none
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse

DEADLINE_SECONDS = 60


def _folder():
    """Debian and Ubuntu keep each version's programs in a folder of its own."""
    found = [path.parent for path in pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    if not found:
        raise FileNotFoundError("there is no PostgreSQL server: run scripts/setup.sh")
    return max(found, key=lambda path: int(path.parent.name))


class Postgres:
    """A server in `directory`, which is made, and goes with delete()."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self._programs = _folder()
        # It does not run as root.
        self._user = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}

    def make(self):
        self.directory.mkdir(mode=0o755)
        if self._user:
            shutil.chown(self.directory, "postgres", "postgres")
        self._run("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "-N")

    @property
    def data(self):
        return str(self.directory / "data")

    def _run(self, name, *arguments):
        done = subprocess.run(
            [str(self._programs / name), *arguments],
            capture_output=True,
            text=True,
            cwd=self.directory,
            timeout=DEADLINE_SECONDS,
            **self._user,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{name}: {done.returncode}: {done.stderr}{done.stdout}")
        return done.stdout

    def start(self):
        options = f"-c listen_addresses='' -c unix_socket_directories='{self.directory}'"
        log = str(self.directory / "log")
        give_up = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                self._run("pg_ctl", "start", "-w", "-D", self.data, "-l", log, "-o", options)
                return
            except RuntimeError:
                # Processes of one that was killed may still hold its memory.
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.1)

    def stop(self, mode="immediate"):
        self._run("pg_ctl", "stop", "-w", "-D", self.data, "-m", mode)

    def restart(self, mode="immediate"):
        self.stop(mode)
        self.start()

    def kill(self):
        """kill -9 of the server; its children notice, and end."""
        os.kill(
            int((self.directory / "data/postmaster.pid").read_text().split()[0]), signal.SIGKILL
        )

    def url(self, user="postgres", database="postgres"):
        host = urllib.parse.quote(str(self.directory), safe="")
        return f"postgresql://{user}@/{database}?host={host}"

    def sql(self, statement, database="postgres"):
        """What a statement gives, a row a line."""
        return self._run(
            "psql", "-h", str(self.directory), "-U", "postgres", "-d", database, "-qAt",
            "-v", "ON_ERROR_STOP=1", "-c", statement,
        ).strip()  # fmt: skip

    def add_user(self, name, password):
        """A user with a database of the same name, who is let in by password alone."""
        self.sql(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        self.sql(f"CREATE DATABASE {name} OWNER {name}")
        rules = self.directory / "data/pg_hba.conf"
        rules.write_text(f"local all {name} scram-sha-256\n" + rules.read_text())
        self.sql("SELECT pg_reload_conf()")

    def delete(self):
        with contextlib.suppress(RuntimeError):
            self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextlib.contextmanager
def postgres():
    """One that runs, for the length of the block."""
    # Its socket is in there: a path that is short whatever TMPDIR is.
    parent = tempfile.mkdtemp(prefix="tessera-pg-", dir="/tmp")
    pathlib.Path(parent).chmod(0o755)
    server = Postgres(f"{parent}/server")
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.delete()
        shutil.rmtree(parent, ignore_errors=True)


def main(command, file):
    file = pathlib.Path(file)
    if file.exists():
        old = pathlib.Path(re.split(r"\s+", file.read_text())[1])
        Postgres(old).delete()
        shutil.rmtree(old.parent, ignore_errors=True)
        file.unlink()
    if command == "start":
        parent = tempfile.mkdtemp(prefix="tessera-pg-", dir="/tmp")
        pathlib.Path(parent).chmod(0o755)
        server = Postgres(f"{parent}/server")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{server.url()}\n{server.directory}\n")
        server.make()
        server.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
