"""What the tests of launchers share: a tesserad that is told of a cluster, and jobs of it."""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))

from cluster import DEADLINE_SECONDS, ProductError, cluster, expect, wait_until
from jobs import sft_job
from submitted import (
    check_same,
    follow,
    get,
    losses_of,
    outcome_of,
    reasons_of,
    submit,
    wait_for_state,
)

STEPS = 120
LONG = 100_000  # steps: never done while a test runs
LEASE_SECONDS, FENCE_SECONDS = 2, 4


class Coordinator:
    """tesserad with `flags`, in the state directory of a Cluster."""

    def __init__(self, service, flags, environment=None):
        self.service = service
        self.flags = flags
        self.environment = {**os.environ, **(environment or {})}
        self.log = service.directory / "tesserad.log"
        self.process = None

    def start(self):
        command = [
            str(self.service.binaries / "tesserad"),
            *("--state-dir", str(self.service.state_dir), "--http", ""),
            *("--lease", f"{LEASE_SECONDS}s", "--fence", f"{FENCE_SECONDS}s"),
            *("--launcher-poll", "300ms", *self.flags),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=self.environment)
        wait_until(lambda: self.service.call("nodes").returncode == 0, "tesserad to answer")

    def crash(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        self.service.state_dir.mkdir(exist_ok=True)
        self.start()
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(DEADLINE_SECONDS)
            expect(kind or code == 0, f"tesserad ended with {code}")


def launched_job(options, output, launcher, ranks=2, steps=STEPS, **resources):
    output.mkdir(parents=True, exist_ok=True)
    job = sft_job(options.assets, output, ranks=ranks, max_steps=steps, save_steps=LONG)
    return job | {"resources": {"launcher": launcher, "cpu_threads": 1} | resources}


def wait_for_reason(service, job, text):
    return wait_until(
        lambda: text in get(service, job)["reason"],
        f"job {job} to say {text!r}",
    )


def undisturbed(options):
    """The losses and the digest of the weights, of a job that our own scheduler places."""
    with cluster(options.bin) as service, service.up("--cpu-slots", "2"):
        output = service.directory / "output"
        events = follow(service, submit(service, "plain", launched_job(options, output, "agents")))
        return outcome_of(events, output)


def run_scenarios(description, scenarios, in_slice, require=lambda: None):
    """The program of a test: main() of its `scenarios`, of which ctest runs some."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help=", ".join(scenarios))
    options = parser.parse_args()
    unknown = sorted(set(options.names) - scenarios.keys())
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(scenarios)}")
    require()
    baseline = undisturbed(options)
    failed = []
    for name in options.names or (scenarios if options.all else in_slice):
        began = time.monotonic()
        try:
            told = scenarios[name](options, baseline)
            took = f"{time.monotonic() - began:.1f} s"
            print(f"ok: {name}: {told + ', ' if told else ''}{took}", flush=True)
        except ProductError as failure:
            failed.append(name)
            print(f"FAILED: {name}: {failure}", flush=True)
    sys.exit(1 if failed else 0)


__all__ = ["Coordinator", "check_same", "cluster", "expect", "follow", "get", "launched_job"]
__all__ += [
    "STEPS",
    "losses_of",
    "reasons_of",
    "run_scenarios",
    "submit",
    "wait_for_reason",
    "wait_for_state",
    "wait_until",
]
