"""Reward servers of the Python package, as processes that tests start, kill and start again."""

import os
import pathlib
import select
import signal
import subprocess
import sys

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "client/python"
# Far beyond what anything here takes: a failure, not a pause.
SECONDS = 60


def build_package(target):
    """What `pip install ./client/python` would put there, without the network."""
    command = [sys.executable, "setup.py", "-q", "build", "-b", str(target / "build")]
    # Nothing is written into the tree, which others may read.
    copy = target / "source"
    subprocess.run(["cp", "-rL", PACKAGE, copy], check=True)
    subprocess.run(command, cwd=copy, check=True)
    return target / "build/lib"


def next_line(stream):
    ready, _, _ = select.select([stream], [], [], SECONDS)
    if not ready:
        raise TimeoutError("no line came")
    return stream.readline()


class RewardServer:
    """A process that runs `program`, which calls serve(); ready once this is made."""

    def __init__(self, package, program, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(package)} | environment,
            text=True,
        )
        line = next_line(self.process.stdout)
        if " at " not in line:
            raise AssertionError(f"the server said {line!r}")
        self.address = line.strip().rpartition(" at ")[2]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(SECONDS)
        self.process.stdout.close()
