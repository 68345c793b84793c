#!/usr/bin/env python3
"""A rank that is cut off takes steps and saves them, until its lease runs out: all of them are in
the events of the job, though nobody heard of them at the time.

cut_off_test.py --bin DIR --assets DIR

The agent of the rank's machine is stopped: nothing comes through, and the rank goes on. The job is
started again on another machine from the last checkpoint, and tells what that has of metrics. The
first machine comes back then, with what nobody wants any more.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess

from cluster import Follower, cluster, expect, wait_until
from jobs import sft_job
from outcome import check_events
from submitted import get, submit

LEASE, FENCE = "1s", "3s"
STEPS, SAVE_STEPS, EVAL_STEPS = 400, 20, 100
CUT_AT = 50  # step


class Machine:
    def __init__(self, service, name):
        self.directory = service.directory / name
        self.log = service.directory / f"{name}.log"
        command = [
            str(service.binaries / "tessera-agent"),
            *("--coordinator", service.address, "--node", name, "--cpu-slots", "1"),
            *("--state-dir", str(self.directory), "--kill-on-exit"),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def start(service):
    command = [str(service.binaries / "tesserad"), "--state-dir", str(service.state_dir)]
    with (service.directory / "tesserad.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--http", "", "--lease", LEASE, "--fence", FENCE], stderr=log
        )
    wait_until(lambda: service.call("nodes").returncode == 0, "tesserad to answer")
    return process


def last_step(events):
    return max((event["step"]["step"] for event in events if "step" in event), default=0)


def check(options, service, stack):
    process = start(service)
    machines = {}
    for name in ("n1", "n2"):
        machines[name] = Machine(service, name)
        stack.callback(machines[name].end)
    wait_until(lambda: len(service.query("nodes")) == 2, "both machines")
    output = service.directory / "output"
    job = sft_job(options.assets, output, max_steps=STEPS, save_steps=SAVE_STEPS)
    # Evaluations are told of as steps are.
    job["data"]["eval"] = job["data"]["train"]
    job["training"] |= {"eval_strategy": "steps", "eval_steps": EVAL_STEPS}
    number = submit(service, "cut-off", job)
    follower = Follower(service, "watch", number)
    known = []

    def on_event(event):
        if not known and event.get("step", {}).get("step", 0) >= CUT_AT:
            (placement,) = get(service, number)["placements"]
            known.append(placement["node"])
            os.kill(machines[placement["node"]].process.pid, signal.SIGSTOP)
        if known and event.get("state", {}).get("state") == "RUNNING" and event["attempt"] == 2:
            os.kill(machines[known[0]].process.pid, signal.SIGCONT)

    follower.follow(on_event)
    code, errors = follower.end()
    expect(code == 0, f"{errors} {follower.events[-1:]}")
    events = follower.events
    expect(events[-1]["attempt"] == 2, f"{events[-1]}")
    check_events(events, STEPS)
    before = last_step([event for event in events if event["attempt"] == 1])
    resumed = next(
        int(event["state"]["reason"].rsplit(" ", 1)[1])
        for event in events
        if event.get("state", {}).get("state") == "RUNNING" and event["attempt"] == 2
    )
    expect(resumed > before, f"step {resumed} was saved, and step {before} heard of: no test")
    evaluations = [event["eval"]["step"] for event in events if "eval" in event]
    wanted = list(range(EVAL_STEPS, STEPS + 1, EVAL_STEPS))
    expect(evaluations == wanted, f"evaluations at {evaluations}")
    process.terminate()
    expect(process.wait() == 0, "tesserad did not end well")
    print(f"ok: steps {before + 1} to {resumed} were taken unheard, and are told of")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with cluster(options.bin) as service, contextlib.ExitStack() as stack:
        check(options, service, stack)


if __name__ == "__main__":
    main()
