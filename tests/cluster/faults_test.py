#!/usr/bin/env python3
"""kill -9 of ranks, agent and coordinator: the job ends as if nothing had happened.

faults_test.py --bin DIR --assets DIR [--all | SCENARIO ...]

A scenario is a 200-step job on two ranks and a list of kills, each at a moment that an event
gives: a state or a step that the client saw, or a name that appeared in the output directory. The
job must end SUCCEEDED, with exit code 0 and the very weights of an uninterrupted run; the client
must have seen every step, the same losses wherever a step was repeated, and revisions that only
grow; nothing half-written and no process may be left.
"""

import argparse
import contextlib
import os
import pathlib
import signal
import sys
import time

from cluster import Follower, ProductError, cluster, expect, wait_until
from inotify import DirectoryWatch
from jobs import sft_job, sha256
from outcome import check_events, check_output

STEPS, SAVE_STEPS = 200, 20
PROGRAMS = {"agent": "tessera-agent", "coordinator": "tesserad"}

# Ten moments. A name with .tmp is a checkpoint or the final directory as its writing begins, one
# without is the same as it is complete.
MOMENTS = [
    "state:STARTING",
    "state:RUNNING",
    "step:1",
    "file:.checkpoint-20.tmp",
    "file:checkpoint-40",
    "step:77",
    "file:.checkpoint-100.tmp",
    "step:143",
    "file:.final.tmp",
    "file:final",
]


def scenarios():
    """name -> [(moment, victim)]: each victim at each moment, and several kills in one run."""
    table = {}
    for victim in ("rank", "agent", "coordinator"):
        for i, moment in enumerate(MOMENTS):
            name = f"{victim}@{moment}"
            table[name] = [(moment, f"rank{i % 2}" if victim == "rank" else victim)]
    table["ranks"] = [
        ("state:RUNNING", "rank1"),
        ("file:.checkpoint-60.tmp", "rank0"),
        ("step:131", "rank1"),
        ("file:.final.tmp", "rank0"),
    ]
    table["agents"] = [
        ("state:STARTING", "agent"),
        ("file:.checkpoint-60.tmp", "agent"),
        ("file:.final.tmp", "agent"),
    ]
    table["coordinators"] = [
        ("state:RUNNING", "coordinator"),
        ("file:.checkpoint-60.tmp", "coordinator"),
        ("file:final", "coordinator"),
    ]
    table["everyone"] = [
        ("step:15", "coordinator"),
        ("step:15", "agent"),
        ("file:.checkpoint-40.tmp", "rank1"),
        ("file:checkpoint-80", "coordinator"),
        ("step:95", "rank0"),
        ("step:95", "agent"),
        ("file:.checkpoint-160.tmp", "rank0"),
        ("file:.checkpoint-160.tmp", "rank1"),
        ("file:.final.tmp", "agent"),
        ("file:.final.tmp", "coordinator"),
    ]
    # As tests/chaos does to it under load, where ranks are counters: it hardly lives. Files tell of
    # steps while no coordinator does.
    saves = range(SAVE_STEPS, STEPS + 1, SAVE_STEPS)
    table["storm"] = [(f"file:checkpoint-{step}", "coordinator") for step in saves] + [
        ("state:RUNNING", "rank1"),
        ("file:checkpoint-60", "agent"),
        ("file:.checkpoint-120.tmp", "rank0"),
        ("file:checkpoint-160", "agent"),
    ]
    return table


QUICK = ["ranks", "agents", "coordinators", "everyone", "storm"]


def moments_of(event):
    if "state" in event:
        return [f"state:{event['state']['state']}"]
    return [f"step:{event['step']['step']}"] if "step" in event else []


class Killer:
    """Kills each victim once, when its moment is first seen."""

    def __init__(self, service, kills):
        self._service = service
        self._left = list(kills)
        # Found before they are needed: at the end of a run there is no time left to look.
        self._known = {}

    @property
    def left(self):
        return self._left

    def look(self):
        for victim in {victim for _, victim in self._left}:
            pid = self._pid(victim)
            if pid is not None:
                self._known[victim] = pid

    def seen(self, moments):
        due = [kill for kill in self._left if kill[0] in moments]
        for kill in due:
            self._left.remove(kill)
            self._kill(kill[1])

    def _pid(self, victim):
        if victim.startswith("rank"):
            return self._service.rank_pid(int(victim.removeprefix("rank")))
        pids = self._service.pids(PROGRAMS[victim])
        return pids[0] if pids else None

    def _kill(self, victim):
        pid = self._known.pop(victim, None)
        if pid is None:
            pid = wait_until(lambda: self._pid(victim), f"a process of {victim}")
        if self._service.owns(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def restarts_are_due(kills):
    """Whether a kill must have cost the ranks of an attempt, or must not have; None: either."""
    if any(
        victim.startswith("rank") and not moment.startswith("file:") for moment, victim in kills
    ):
        return True
    early_or_ranks = any(
        victim.startswith("rank") or moment == "state:STARTING" for moment, victim in kills
    )
    return None if early_or_ranks else False


def run_scenario(options, kills, baseline):
    """(losses by step, hash of the final weights, one line on what happened)."""
    with cluster(options.bin) as service:
        output = service.directory / "output"
        output.mkdir()
        job = sft_job(options.assets, output, ranks=2, max_steps=STEPS, save_steps=SAVE_STEPS)
        watch = DirectoryWatch(output)
        killer = Killer(service, kills)
        began = time.monotonic()
        follower = Follower(service, "run", str(service.write_job("job", job)))

        def on_event(event):
            moments = moments_of(event)
            killer.seen(moments)
            if "state" in event or event.get("step", {}).get("step", 1) % SAVE_STEPS == 0:
                killer.look()

        def on_name():
            killer.seen([f"file:{name}" for name in watch.read()])

        follower.follow(on_event, [(watch.descriptor, on_name)])
        code, errors = follower.end()
        watch.close()
        last = follower.events[-1] if follower.events else {}
        state = last.get("state", {}).get("state")
        expect(code == 0 and state == "SUCCEEDED", f"exit code {code}, {last}: {errors}")
        expect(not killer.left, f"moments that never came: {killer.left}")
        losses = check_events(follower.events, STEPS, baseline and baseline[0])
        attempts = last["attempt"]
        due = restarts_are_due(kills)
        expect(due is not True or attempts > 1, "a rank was killed, yet there was one attempt")
        expect(due is not False or attempts == 1, f"{attempts} attempts: the ranks did not go on")
        check_output(output, STEPS, SAVE_STEPS)
        service.expect_gone()
        digest = sha256(output / "final" / "model.safetensors")
        expect(not baseline or digest == baseline[1], "the final weights differ")
        return losses, digest, f"{attempts} attempts, {time.monotonic() - began:.1f} s"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--all", action="store_true", help="every scenario; else a few")
    parser.add_argument("names", nargs="*", metavar="SCENARIO")
    options = parser.parse_args()
    table = scenarios()
    names = options.names or (list(table) if options.all else QUICK)
    baseline = run_scenario(options, [], None)
    print(f"ok: uninterrupted: {baseline[2]}", flush=True)
    failed = []
    for name in names:
        try:
            print(f"ok: {name}: {run_scenario(options, table[name], baseline)[2]}", flush=True)
        except ProductError as failure:
            failed.append(name)
            print(f"FAILED: {name}: {failure}", flush=True)
    print(f"{len(names) - len(failed)} of {len(names)} scenarios passed", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
