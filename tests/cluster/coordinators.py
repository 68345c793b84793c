"""One of several coordinators that share a database, and who follows a job over all of them."""

import contextlib
import signal
import subprocess
import threading
import urllib.error
import urllib.request

from cluster import DEADLINE_SECONDS, expect

LEASE_SECONDS = 2
PASSWORD = "correct-horse-4711"


class Coordinator:
    """A tesserad that may lead. Its address stays when it is started again."""

    def __init__(self, service, database, name, *flags, user="tessera"):
        self.name = name
        self.state = service.directory / name
        self.address = f"unix:{self.state}/tesserad.sock"
        self.log = service.directory / f"{name}.log"
        self.password = service.directory / "password"
        self.command = [
            str(service.binaries / "tesserad"),
            *("--state-dir", str(self.state), "--store", database.url(user, user)),
            *("--store-password-file", str(self.password)),
            *("--leader-lease", f"{LEASE_SECONDS}s", *flags),
        ]
        self.start()

    def start(self):
        self.password.write_text(PASSWORD + "\n")
        self.password.chmod(0o600)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stderr=log)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(DEADLINE_SECONDS) == 0, self.log.read_text())

    def get(self, path):
        """(code, text) of a page; None where there is no server."""
        with contextlib.suppress(OSError):
            port = (self.state / "http.port").read_text().strip()
            try:
                page = urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30)
            except urllib.error.HTTPError as error:
                page = error
            with page:
                return page.status, page.read().decode()
        return None

    def leads(self):
        return self.process.poll() is None and self.get("/readyz") == (200, "ok\n")

    def stands_by(self):
        page = self.get("/readyz")
        return page is not None and page[0] == 503 and "the leader is at" in page[1]


class PythonWatch:
    """Follows a job from Python, in a thread: revisions, in the order in which they came."""

    def __init__(self, tessera, address, job):
        self.revisions = []
        self._thread = threading.Thread(target=self._follow, args=(tessera, address, job))
        self._thread.start()

    def _follow(self, tessera, address, job):
        with tessera.Client(address, patience=DEADLINE_SECONDS) as client:
            self.revisions += (event.revision for event in client.watch(job))

    def join(self):
        self._thread.join(DEADLINE_SECONDS)
        expect(not self._thread.is_alive(), "a watch from Python did not end")
        return self.revisions
