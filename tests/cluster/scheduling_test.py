#!/usr/bin/env python3
"""Jobs that are stopped and go on: preempted, suspended, out of time, and on fewer devices.

scheduling_test.py --bin DIR --assets DIR [SCENARIO ...]

What was stopped at a checkpoint must end with the very weights of a run that nobody disturbed. A
job that goes on with one rank of two must have its losses but for the order of sums.
"""

import argparse
import contextlib
import math
import os
import pathlib
import signal
import subprocess
import sys
import time

from cluster import ProductError, cluster, expect, wait_until
from jobs import sft_job
from submitted import check_same, follow, get, losses_of, outcome_of, submit, wait_for_state

STEPS = 250
LONG = 100_000  # steps: never done while a test runs
# float32 sums in another order, over as many steps.
RELATIVE = 1e-5
LEASE_SECONDS, FENCE_SECONDS = 2, 3


def two_ranks(options, output, steps=STEPS, **resources):
    output.mkdir(parents=True, exist_ok=True)
    job = sft_job(options.assets, output, ranks=2, max_steps=steps, save_steps=LONG)
    return job | {"resources": {"cpu_threads": 1} | resources}


def states_of(events):
    return [event["state"]["state"] for event in events if "state" in event]


def undisturbed(options):
    with cluster(options.bin) as service, service.up("--cpu-slots", "2"):
        output = service.directory / "output"
        job = submit(service, "undisturbed", two_ranks(options, output))
        events = follow(service, job)
        return outcome_of(events, output)


def preempted(options, baseline):
    with cluster(options.bin) as service, service.up("--cpu-slots", "2"):
        output = service.directory / "output"
        job = submit(service, "low", two_ranks(options, output))
        urgent = []

        def interrupt():
            urgent.append(
                submit(
                    service,
                    "urgent",
                    two_ranks(options, service.directory / "urgent", steps=4, priority=5),
                )
            )

        events = follow(service, job, interrupt)
        expect(get(service, urgent[0])["state"] == "SUCCEEDED", "the urgent job did not succeed")
        states = states_of(events)
        expect(states.count("STOPPING") == 1, f"the states were {states}")
        ended = get(service, job)
        expect(ended.get("preemptions") == 1 and ended["attempt"] == 2, f"{ended}")
        expect(not ended.get("restarts"), "a preemption counted as a restart")
        order = [j["id"] for j in sorted(service.query("list"), key=lambda j: j["endTime"])]
        expect(order[0] == urgent[0], "the urgent job did not end first")
        check_same(events, output, baseline)


def suspended(options, baseline):
    with cluster(options.bin) as service, service.up("--cpu-slots", "2"):
        output = service.directory / "output"
        job = submit(service, "pausing", two_ranks(options, output))

        def pause():
            done = service.call("suspend", job)
            expect(done.returncode == 0, done.stderr)
            wait_for_state(service, job, "SUSPENDED")
            held = [d for node in service.query("nodes") for d in node["devices"] if d.get("job")]
            expect(not held, f"a suspended job holds {held}")
            expect(service.rank_pid(0) is None, "a suspended job has a process")
            for pid in service.pids("tesserad"):  # it is suspended for whoever comes next, too
                os.kill(pid, signal.SIGKILL)
            done = wait_until(
                lambda: next((d for d in [service.call("resume", job)] if not d.returncode), None),
                "the job to be resumed",
            )

        events = follow(service, job, pause)
        expect("SUSPENDED" in states_of(events), f"the states were {states_of(events)}")
        check_same(events, output, baseline)


def out_of_time(options, baseline):
    with cluster(options.bin) as service, service.up("--cpu-slots", "4"):
        jobs = {}
        for name, field in (("limited", "time_limit"), ("late", "deadline")):
            output = service.directory / name
            spec = two_ranks(options, output, steps=LONG, **{field: "8s"})
            jobs[name] = (submit(service, name, spec), output, field)
        for job, output, field in jobs.values():
            failed = wait_for_state(service, job, "FAILED")
            expect(failed["failure"]["kind"] == "TIME", f"{failed['failure']}")
            expect(field in failed["reason"], f"the reason is {failed['reason']}")
            expect(list(output.glob("checkpoint-*")), f"{job} left no checkpoint")
            expect(failed["attempt"] == 1, "a job that is out of time was started again")


@contextlib.contextmanager
def two_machines(service):
    """A coordinator that gives a machine up soon, and two agents of one device each."""
    service.state_dir.mkdir()
    log = (service.directory / "cluster.log").open("ab")

    def start(program, *arguments):
        return subprocess.Popen(
            [str(service.binaries / program), *arguments], stdout=log, stderr=log
        )

    coordinator = start(
        "tesserad",
        *("--state-dir", str(service.state_dir), "--http", ""),
        *("--lease", f"{LEASE_SECONDS}s", "--fence", f"{FENCE_SECONDS}s"),
    )
    wait_until(lambda: service.call("nodes").returncode == 0, "the coordinator to answer")
    agents = {
        name: start(
            "tessera-agent",
            *("--coordinator", service.address, "--node", name, "--cpu-slots", "1"),
            *("--cuda-devices", "none", "--state-dir", str(service.directory / name)),
        )
        for name in ("one", "two")
    }
    wait_until(lambda: len(service.query("nodes")) == 2, "two nodes")
    try:
        yield
    finally:
        service.kill_all()
        for process in (coordinator, *agents.values()):
            process.wait()
        log.close()


def elastic(options, baseline):
    with cluster(options.bin) as service, two_machines(service):
        output = service.directory / "output"
        spec = two_ranks(options, output)
        spec["parallelism"] = {"num_processes": 2, "min_num_processes": 1}
        spec["training"]["save_steps"] = 10
        job = submit(service, "elastic", spec)

        def lose_a_machine():
            # Its agent and its rank at once, and nothing of it comes back.
            gone = str(service.directory / "two")
            for pid in service.pids():
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if any(word.startswith(gone) for word in words):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        events = follow(service, job, lose_a_machine)
        reasons = [event["state"]["reason"] for event in events if "state" in event]
        expect(any("starts 1 of 2 ranks" in reason for reason in reasons), f"{reasons}")
        losses = losses_of(events)
        expect(losses.keys() == baseline[0].keys(), "steps are missing")
        worst = max(abs(losses[step] / loss - 1) for step, loss in baseline[0].items())
        expect(worst < RELATIVE, f"a loss differs by {worst:.2e}")
        return f"losses within {worst:.1e}"


SCENARIOS = {
    "preempted": preempted,
    "suspended": suspended,
    "out_of_time": out_of_time,
    "elastic": elastic,
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="SCENARIO")
    options = parser.parse_args()
    baseline = undisturbed(options)
    expect(all(math.isfinite(loss) for loss in baseline[0].values()), "a loss is not finite")
    failed = []
    for name in options.names or SCENARIOS:
        began = time.monotonic()
        try:
            told = SCENARIOS[name](options, baseline)
            took = f"{time.monotonic() - began:.1f} s"
            print(f"ok: {name}: {told + ', ' if told else ''}{took}", flush=True)
        except ProductError as failure:
            failed.append(name)
            print(f"FAILED: {name}: {failure}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
