"""What the tests of launchers share: a tesserad that is told of a cluster, and jobs of it."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))

from cluster import DEADLINE_SECONDS, Follower, ProductError, cluster, expect, wait_until
from jobs import sft_job, sha256

STEPS = 120
DISTURBED_AT = 20
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


def submit(service, name, job):
    done = service.call("submit", str(service.write_job(name, job | {"name": name})))
    expect(done.returncode == 0, done.stderr)
    return done.stdout.strip()


def get(service, job):
    return service.query("get", job)[0]


def wait_for_state(service, job, *states):
    def look():
        now = get(service, job)
        ended = now["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")
        expect(now["state"] in states or not ended, f"{job} is {now['state']}: {now['reason']}")
        return now if now["state"] in states else None

    return wait_until(look, f"job {job} to be {states}")


def wait_for_reason(service, job, text):
    return wait_until(
        lambda: text in get(service, job)["reason"],
        f"job {job} to say {text!r}",
    )


def follow(service, job, disturb=None):
    """The job's events to its end; calls disturb() once it is well under way."""
    follower = Follower(service, "watch", job)
    pending = [disturb] if disturb else []

    def on_event(event):
        if pending and event.get("step", {}).get("step", 0) >= DISTURBED_AT:
            pending.pop()()

    follower.follow(on_event)
    code, errors = follower.end()
    expect(not pending, f"{job} ended before it was disturbed: {errors}")
    expect(code == 0, f"exit code {code}: {follower.events[-1:]} {errors}")
    return follower.events


def losses_of(events):
    return {event["step"]["step"]: event["step"]["loss"] for event in events if "step" in event}


def reasons_of(events):
    return [event["state"]["reason"] for event in events if "state" in event]


def undisturbed(options):
    """The losses and the digest of the weights, of a job that our own scheduler places."""
    with cluster(options.bin) as service, service.up("--cpu-slots", "2"):
        output = service.directory / "output"
        events = follow(service, submit(service, "plain", launched_job(options, output, "agents")))
        return losses_of(events), sha256(output / "final" / "model.safetensors")


def check_same(events, output, baseline):
    losses, digest = baseline
    expect(losses_of(events) == losses, "the losses differ from those of a job of our own agents")
    expect(sha256(output / "final" / "model.safetensors") == digest, "the weights differ")


def run_scenarios(scenarios, names):
    failed = []
    for name in names:
        began = time.monotonic()
        try:
            told = scenarios[name]()
            took = f"{time.monotonic() - began:.1f} s"
            print(f"ok: {name}: {told + ', ' if told else ''}{took}", flush=True)
        except ProductError as failure:
            failed.append(name)
            print(f"FAILED: {name}: {failure}", flush=True)
    sys.exit(1 if failed else 0)


__all__ = ["Coordinator", "ProductError", "check_same", "cluster", "contextlib", "expect"]
__all__ += ["follow", "get", "launched_job", "reasons_of", "run_scenarios", "submit"]
__all__ += ["undisturbed", "wait_for_reason", "wait_for_state", "wait_until"]
