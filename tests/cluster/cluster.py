"""A service in a directory of its own, driven through the real command line.

Every process of a service has its state directory in its command line, so what belongs to a test
is found in /proc, and what a test leaves behind too. Whoever waits here waits for a condition with
a deadline that no healthy run comes near.
"""

import contextlib
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

DEADLINE_SECONDS = 120
POLL_SECONDS = 0.02
PROGRAMS = ("tessera", "tesserad", "tessera-agent", "tessera-trainer")


class ProductError(Exception):
    """What the product did is not what it should do."""


def expect(condition, message):
    if not condition:
        raise ProductError(message)


def wait_until(condition, what, seconds=DEADLINE_SECONDS):
    """The first true value of condition()."""
    give_up = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        expect(time.monotonic() < give_up, f"waited {seconds} s in vain: {what}")
        time.sleep(POLL_SECONDS)


def program(name):
    """A tool of the system, or one that scripts/setup.sh put beside this Python."""
    path = shutil.which(name) or shutil.which(name, path=pathlib.Path(sys.executable).parent)
    if path is None:
        raise FileNotFoundError(f"there is no {name}: run scripts/setup.sh")
    return path


def command_line(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile
        return []
    return [word.decode(errors="replace") for word in words]


class Cluster:
    """The programs in `binaries`, with state and jobs below a temporary directory."""

    def __init__(self, binaries, directory):
        self.binaries = pathlib.Path(binaries)
        self.directory = pathlib.Path(directory)
        self.state_dir = self.directory / "state"
        self.address = f"unix:{self.state_dir}/tesserad.sock"
        for program in PROGRAMS:
            expect((self.binaries / program).is_file(), f"{self.binaries} holds no {program}")

    def command(self, *arguments):
        return [str(self.binaries / "tessera"), "--state-dir", str(self.state_dir), *arguments]

    def call(self, *arguments):
        """Runs a command of the CLI to its end."""
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=DEADLINE_SECONDS
        )

    def query(self, *arguments):
        """The messages that a command with --json prints."""
        done = self.call("--json", *arguments)
        expect(done.returncode == 0, f"tessera {' '.join(arguments)}: {done.stderr.strip()}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def write_job(self, name, job):
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(job, indent=1) + "\n")
        return path

    def owns(self, pid):
        return any(str(self.directory) in word for word in command_line(pid))

    def pids(self, program=None):
        """Processes of this service, or those of one program."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            if not self.owns(entry.name):
                continue
            words = command_line(entry.name)
            if words and (program is None or pathlib.Path(words[0]).name == program):
                found.append(int(entry.name))
        return found

    def rank_pid(self, rank):
        """The process of a rank, once there is one; None before."""
        for pid in self.pids("tessera-trainer"):
            if any(f"/rank-{rank}/" in word for word in command_line(pid)):
                return pid
        return None

    def expect_gone(self, program=None):
        wait_until(
            lambda: not self.pids(program),
            f"{program or 'processes of the service'} to be gone: "
            f"{[command_line(pid) for pid in self.pids(program)]}",
        )

    def unfinished(self):
        states = ["queued", "starting", "running", "restarting", "stopping", "cancelling"]
        return self.query("list", *(word for state in states for word in ("--state", state)))

    def expect_nothing_unfinished(self):
        jobs = [(job["id"], job["state"], job["reason"]) for job in self.unfinished()]
        expect(not jobs, f"unfinished jobs are left: {jobs}")

    def kill_all(self):
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def up(self, *flags):
        """`tessera up` for the length of the block, ended as Ctrl-C in a terminal would."""
        with (self.directory / "up.log").open("ab") as log:
            service = subprocess.Popen(
                self.command("up", *flags), stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            lines = [service.stdout.readline() for _ in range(3)]  # ready once it says where it is
            expect(lines[2].startswith("state"), f"tessera up printed {lines}")
            yield service
            service.send_signal(signal.SIGTERM)
            expect(service.wait(DEADLINE_SECONDS) == 0, f"tessera up ended with {service.poll()}")
        finally:
            if service.poll() is None:
                service.kill()
                service.wait()
            service.stdout.close()
        self.expect_gone()


@contextlib.contextmanager
def slowed(pid):
    """The process is stopped for most of the time, again and again in every millisecond it runs."""
    over = threading.Event()

    def stop_and_go():
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(0.04)
            os.kill(pid, signal.SIGCONT)
            over.wait(0.001)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def cluster(binaries, kind=Cluster):
    """A Cluster, or a `kind` of it, whose directory and processes end with the block."""
    with tempfile.TemporaryDirectory(prefix="tessera-") as directory:
        os.environ["XDG_CACHE_HOME"] = f"{directory}/cache"
        service = kind(binaries, directory)
        try:
            yield service
        except BaseException:
            for log in sorted(service.directory.rglob("*.log")):
                tail = log.read_text(errors="replace")[-4000:]
                print(f"---- {log.relative_to(directory)}\n{tail}", flush=True)
            raise
        finally:
            service.kill_all()
            wait_until(lambda: not service.pids(), "killed processes to be gone")


class Follower:
    """A CLI command that streams a job's events, one ProtoJSON line each."""

    def __init__(self, service, *arguments):
        self.events = []
        self._errors = (service.directory / "client.log").open("w+b")
        self._process = subprocess.Popen(
            service.command("--json", *arguments), stdout=subprocess.PIPE, stderr=self._errors
        )
        self._partial = b""

    def follow(self, on_event, watches=(), seconds=DEADLINE_SECONDS):
        """Calls on_event(event) for each event until the end of the stream. Each of `watches`,
        (file descriptor, callback), has its callback called whenever it can be read."""
        callbacks = dict(watches)
        poll = select.poll()
        stdout = self._process.stdout.fileno()
        for descriptor in (stdout, *callbacks):
            poll.register(descriptor, select.POLLIN)
        give_up = time.monotonic() + seconds
        while True:
            expect(time.monotonic() < give_up, f"no end within {seconds} s")
            for descriptor, _ in poll.poll(1000):
                if descriptor != stdout:
                    callbacks[descriptor]()
                    continue
                data = os.read(stdout, 1 << 16)
                if not data:
                    return
                *lines, self._partial = (self._partial + data).split(b"\n")
                for line in lines:
                    self.events.append(json.loads(line))
                    on_event(self.events[-1])

    def end(self):
        """(exit code, standard error) of the command."""
        code = self._process.wait(DEADLINE_SECONDS)
        self._process.stdout.close()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace")
        self._errors.close()
        return code, text


def run_job(service, *arguments):
    """(exit code, events, standard error) of a CLI command that follows a job."""
    follower = Follower(service, *arguments)
    follower.follow(lambda event: None)
    code, errors = follower.end()
    return code, follower.events, errors
