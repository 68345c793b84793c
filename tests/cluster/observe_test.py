#!/usr/bin/env python3
"""What the service tells of ranks that run: traces on demand, what they exchange, which one is
slow, and which one the others wait for when they hang.

observe_test.py --bin DIR --assets DIR
"""

import argparse
import asyncio
import ctypes
import importlib
import json
import os
import pathlib
import re
import signal
import sys
import threading
import urllib.request

from cluster import cluster, expect, slowed, wait_until
from jobs import sft_job

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from reward_server import build_package

LONG = 100_000  # steps: never done while the test runs
HANG_SECONDS = 16
PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
WALL = 0x40000000  # __WALL of waitpid(2)


class Job:
    """A job that runs, and what is known of it."""

    def __init__(self, service, job):
        self.service = service
        done = service.call("submit", str(service.write_job("job", job)))
        expect(done.returncode == 0, done.stderr)
        self.id = done.stdout.strip()

    def get(self):
        return self.service.query("get", self.id)[0]

    def step(self):
        job = self.get()
        return job["step"]["step"] if job["state"] == "RUNNING" and job.get("step") else 0

    def await_steps(self, count, attempt=1):
        """Until an attempt has taken so many steps after the job's last one."""
        begin = self.get().get("step", {}).get("step", 0)
        wait_until(
            lambda: self.get()["attempt"] >= attempt and self.step() >= begin + count,
            f"{count} steps of attempt {attempt}",
        )

    def events(self):
        with tessera.Client(self.service.address) as client:
            return [*client.watch(self.id, follow=False)]

    def failure_of(self, attempt):
        """Why the attempt ended."""

        def ended():
            for event in self.events():
                change = event.state
                if event.attempt == attempt and change.state == tessera.State.QUEUED:
                    return change
            return None

        return wait_until(ended, f"attempt {attempt} to end")


def kind_of(change):
    return change.failure.Kind.Name(change.failure.kind)


def check_python(job):
    """The same by the Python clients."""

    async def ask():
        async with tessera.AsyncClient(job.service.address) as client:
            await client.trace(job.id, ranks=[1])
            await client.record_collectives(job.id)

    known = job.get()["revision"]
    with tessera.Client(job.service.address) as client:
        client.record_collectives(job.id)
        wanted = {"trace": 2, "collectives": 4}
        at = client.trace(job.id, ranks=[0])
        asyncio.run(ask())
        for event in client.watch(job.id, start_revision=int(known) + 1):
            kind = event.WhichOneof("kind")
            if kind == "trace":
                expect(event.trace.step > at, f"{event} was asked for at step {at}")
            wanted[kind] = wanted.get(kind, 0) - 1
            if wanted["trace"] <= 0 and wanted["collectives"] <= 0:
                break


def check_traces(job):
    """The next steps of chosen ranks, as files that Perfetto reads."""
    done = job.service.call("trace", job.id, "--steps", "2", "--ranks", "1")
    expect(done.returncode == 0, done.stderr)
    paths = [pathlib.Path(line) for line in done.stdout.split()]
    steps = [int(path.name.split("-")[1]) for path in paths]
    expect(len(paths) == 2 and steps[1] == steps[0] + 1, f"traces: {paths}")
    for path in paths:
        expect(path.name.endswith("rank-1.json"), f"{path} was not asked for")
        names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
        expect({"forward", "backward", "optimizer"} <= names, f"{path} has only {names}")
    # All ranks trace the same step where it is one to come.
    first = job.step() + 150
    found = job.service.query("trace", job.id, "--step", str(first))
    expect(
        {(event["trace"]["step"], event["trace"]["rank"]) for event in found}
        == {(first, 0), (first, 1)},
        f"{found}",
    )
    refused = job.service.call("trace", job.id, "--ranks", "0,2")
    expect(
        refused.returncode == 2 and "ranks has 2, must be from 0 to 1" in refused.stderr,
        refused.stderr,
    )


def check_collectives(job):
    """What ranks that work exchanged last, in the same order on both."""
    done = job.service.call("collectives", job.id)
    expect(done.returncode == 0, done.stderr)
    lines = done.stdout.splitlines()
    expect(len(lines) == 3 and lines[0].split()[:2] == ["RANK", "NODE"], done.stdout)
    records = [event["collectives"] for event in job.service.query("collectives", job.id)]
    kinds = [
        {(c["group"], c["sequence"]): c["kind"] for c in record["collectives"]}
        for record in records
    ]
    expect([record["rank"] for record in records] == [0, 1], f"{records}")
    expect("all_gather" in kinds[0].values(), f"rank 0 gathered nothing: {kinds[0]}")
    both = kinds[0].keys() & kinds[1].keys()
    expect(all(kinds[0][key] == kinds[1][key] for key in both), f"{kinds}")
    exchanges = job.service.call("collectives", job.id, "--rank", "1")
    expect(exchanges.stdout.startswith("EXCHANGE"), exchanges.stdout)


def check_straggler(job):
    port = (job.service.state_dir / "http.port").read_text().strip()

    def metrics():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as page:
            return page.read().decode()

    # On a machine that others use rank 0 may have been slow by itself before.
    def reason(says):
        return re.search(rf"^rank 1 on .*{says}", job.get()["reason"])

    with slowed(job.service.rank_pid(1)):
        wait_until(lambda: reason("is slow"), "the straggler to be found")
        shown = job.service.call("get", job.id).stdout
        expect("rank 1 on" in shown, f"`tessera get` says {shown}")
        wait_until(
            lambda: any(
                line.startswith("tessera_job_slowest_rank{") and line.endswith("} 1")
                for line in metrics().splitlines()
            ),
            "the metric of the slowest rank",
        )
    wait_until(lambda: reason("keeps up again"), "it to keep up again")
    events = [event.straggler for event in job.events() if event.HasField("straggler")]
    told = [event.is_over for event in events if event.rank == 1]
    expect(told[-2:] == [False, True], f"{events}")


def check_stopped(job, attempt):
    """A rank that does not answer is what the others wait for, and needs no hang_timeout."""
    os.kill(job.service.rank_pid(1), signal.SIGSTOP)
    change = job.failure_of(attempt)
    expect(kind_of(change) == "HANG", f"{change}")
    expect(
        change.failure.message.startswith("rank 1 does not answer, and rank 0 waits for it in "),
        change.failure.message,
    )
    expect("hang_timeout" not in change.failure.message, change.failure.message)
    expect(change.failure.rank == 1, f"{change}")


def await_end(traced):
    status = os.waitpid(traced, WALL)[1]
    while not os.WIFEXITED(status) and not os.WIFSIGNALED(status):
        status = os.waitpid(traced, WALL)[1]


def check_stuck(job, attempt):
    """A rank whose training thread hangs answers, and is named."""
    libc = ctypes.CDLL(None, use_errno=True)
    pid = job.service.rank_pid(1)
    # That thread alone.
    if libc.ptrace(PTRACE_SEIZE, pid, 0, 0) != 0 or libc.ptrace(PTRACE_INTERRUPT, pid, 0, 0) != 0:
        print(f"SKIPPED: ptrace is refused here: {os.strerror(ctypes.get_errno())}", flush=True)
        os.kill(pid, signal.SIGKILL)
        job.failure_of(attempt)
        return
    # Its parent hears of its end after us, who trace it.
    threading.Thread(target=await_end, args=[pid], daemon=True).start()
    change = job.failure_of(attempt)
    expect(kind_of(change) == "HANG", f"{change}")
    message = change.failure.message
    expect(message.startswith("rank 1 ") and "does not answer" not in message, message)
    expect("rank 0 waits" in message, message)
    last = {e.collectives.rank: e.collectives for e in job.events() if e.HasField("collectives")}
    waits = [c for c in last[0].collectives if c.is_waited_for]
    expect(len(waits) == 1 and waits[0].seconds > HANG_SECONDS / 2, f"{waits}")


def check_killed(job, attempt):
    """Where the others were when a rank died."""
    os.kill(job.service.rank_pid(1), signal.SIGKILL)
    change = job.failure_of(attempt)
    expect(kind_of(change) == "DEVICE", f"{change}")
    lines = [event.log.text for event in job.events() if event.HasField("log")]
    expect(
        any(line.startswith("rank 1 has ended, and rank 0 waits for it in") for line in lines),
        f"{lines}",
    )


def check_ended(job):
    """What is known of a job that runs no more; nothing can be asked of it."""
    expect(job.service.call("cancel", job.id).returncode == 0, "it cannot be cancelled")
    wait_until(lambda: job.get()["state"] == "CANCELLED", "the end of the job")
    stored = job.service.call("collectives", job.id, "--rank", "0")
    expect(stored.returncode == 0 and "waited for" in stored.stdout, stored.stdout + stored.stderr)
    refused = job.service.call("trace", job.id)
    expect(refused.returncode == 2 and "has ended" in refused.stderr, refused.stderr)


def run(options, service):
    training = {"max_steps": LONG, "save_steps": 20, "logging_steps": 5}
    spec = sft_job(options.assets, service.directory / "output", 2, **training)
    spec["resources"] = {"hang_timeout": f"{HANG_SECONDS}s", "max_restarts": 10}
    with service.up("--cpu-slots", "2"):
        job = Job(service, spec)
        job.await_steps(10)
        check_traces(job)
        check_collectives(job)
        check_python(job)
        check_straggler(job)
        for attempt, check in enumerate((check_stopped, check_stuck, check_killed), 1):
            job.await_steps(5, attempt)
            check(job, attempt)
        check_ended(job)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with cluster(options.bin) as service:
        global tessera
        sys.path.insert(0, str(build_package(service.directory)))
        tessera = importlib.import_module("tessera")
        run(options, service)


if __name__ == "__main__":
    main()
