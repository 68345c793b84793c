#!/usr/bin/env python3
"""How much of its time a job trains while something is killed again and again.

effective_time.py --bin build/bin --assets build/tests/parity/assets --minutes 5 --every 60

A real service (`tessera up`) and a job on two ranks that writes a checkpoint every few seconds.
Every so often a fault: a rank is killed, stopped (SIGSTOP: it hangs), the agent is killed, or
stopped until its node counts as lost. Training is effective in the time that its distinct steps
would have taken undisturbed, at the rate of those between faults, checkpoints included; steps that
are repeated, and the time in between, are lost. Printed are the effective share of the time from
the first step on, and for each fault how long it took until it was known, and until the next new
step.
"""

import argparse
import datetime
import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/cluster"))
from cluster import DEADLINE_SECONDS, Follower, cluster, expect, wait_until
from jobs import sft_job, write_llama

FOREVER = 1_000_000  # steps
# A time without a new step that only a fault explains.
NO_STEP_SECONDS = 2


def seconds_of(event):
    """When the event was made, in Unix time."""
    text = event["time"].removesuffix("Z")
    whole, _, fraction = text.partition(".")
    moment = datetime.datetime.fromisoformat(whole + "+00:00")
    return moment.timestamp() + float(f"0.{fraction or 0}")


class Faults(threading.Thread):
    """Injects one after another, and notes when."""

    def __init__(self, service, options):
        super().__init__(daemon=True)
        self._service, self._options = service, options
        self.done = []  # (kind, Unix time, seconds until known, or None: the events tell)
        self.is_over = threading.Event()

    def run(self):
        kinds = itertools.cycle(self._options.kinds.split(","))
        end = time.monotonic() + 60 * self._options.minutes
        while not self.is_over.wait(self._options.every):
            # The last one gets its time, too.
            if time.monotonic() > end - self._options.every / 2:
                break
            kind = next(kinds)
            begin = time.time()
            self.done.append((kind, begin, getattr(self, f"_{kind}")()))
        self.is_over.set()

    def _signal(self, pid, number):
        os.kill(pid, number)

    def _any_rank(self):
        return wait_until(lambda: self._service.rank_pid(len(self.done) % 2), "a rank")

    def _rank(self):
        self._signal(self._any_rank(), signal.SIGKILL)

    def _hang(self):
        self._signal(self._any_rank(), signal.SIGSTOP)

    def _agent_pid(self):
        return wait_until(lambda: self._service.pids("tessera-agent"), "an agent")[0]

    def _node_state(self):
        nodes = self._service.query("nodes")
        return nodes[0].get("state") if nodes else None

    def _agent(self):
        begin, pid = time.monotonic(), self._agent_pid()
        self._signal(pid, signal.SIGKILL)
        wait_until(lambda: self._agent_pid() != pid, "the next agent")
        return time.monotonic() - begin

    def _host(self):
        """Nothing is heard of the machine, until it counts as lost."""
        begin, pid = time.monotonic(), self._agent_pid()
        self._signal(pid, signal.SIGSTOP)
        wait_until(lambda: self._node_state() == "LOST", "the node to be lost")
        seconds = time.monotonic() - begin
        self._signal(pid, signal.SIGCONT)
        wait_until(lambda: self._node_state() == "READY", "the node to be back")
        return seconds


def make_job(service, options):
    model = service.directory / "model"
    write_llama(model, options.hidden, 2 * options.hidden, options.layers)
    output = service.directory / "output"
    output.mkdir()
    job = sft_job(
        options.assets,
        output,
        ranks=2,
        max_steps=FOREVER,
        save_steps=options.save_steps,
        save_total_limit=2,
        per_device_train_batch_size=options.batch,
    )
    job["model"] = {"path": str(model), "tokenizer": f"{options.assets}/tokenizer"}
    job["resources"] = {
        "cpu_threads": 1,
        "max_restarts": 1000,
        "hang_timeout": f"{options.hang_timeout}s",
    }
    return service.write_job("job", job)


def run(options, service):
    faults = Faults(service, options)
    done = service.call("submit", str(make_job(service, options)))
    expect(done.returncode == 0, done.stderr)
    job = done.stdout.strip()
    follower = Follower(service, "watch", job)

    def on_event(event):
        if "step" in event and not faults.is_alive() and not faults.is_over.is_set():
            faults.start()

    def cancel():
        faults.is_over.wait()
        subprocess.run(service.command("cancel", job), capture_output=True, timeout=60)

    canceller = threading.Thread(target=cancel, daemon=True)
    canceller.start()
    follower.follow(on_event, seconds=60 * options.minutes + 2 * DEADLINE_SECONDS)
    follower.end()
    faults.join()
    return follower.events, faults.done


def first_after(events, begin, wanted):
    """Seconds from `begin` to the first event that is wanted; None: there is none."""
    times = (seconds_of(event) for event in events if wanted(event))
    return next((at - begin for at in times if at >= begin), None)


def new_steps(events):
    """[(Unix time, step)] of the steps that were not there before."""
    result, highest = [], 0
    for event in events:
        step = event.get("step", {}).get("step", 0)
        if step > highest:
            highest = step
            result.append((seconds_of(event), step))
    return result


def undisturbed_seconds(steps, faults):
    """Of a step: the time between two, where there was no fault, divided by their number."""
    seconds = count = 0
    bounds = [0.0, *(begin for _, begin, _ in faults), float("inf")]
    for begin, end in itertools.pairwise(bounds):
        between = [at for at, _ in steps if begin < at < end]
        # Those of the attempt before may still be on their way.
        fresh = [b for a, b in itertools.pairwise(between) if b - a > NO_STEP_SECONDS]
        between = [at for at in between if at >= max(fresh, default=0)]
        if len(between) > 1:
            seconds += between[-1] - between[0]
            count += len(between) - 1
    return seconds / count


def attempt_times(events):
    """How long each later attempt took from one landmark to the next, medians in seconds."""
    spans = {}
    marks = {}
    for event in events:
        at = seconds_of(event)
        state = event.get("state", {}).get("state")
        if state == "RESTARTING":
            marks = {"RESTARTING": at}
        elif not marks:
            continue
        elif state in ("QUEUED", "STARTING", "RUNNING"):
            marks[state] = at
        elif "step" in event:
            marks["step"] = at
            names = list(marks)
            for before, after in itertools.pairwise(names):
                spans.setdefault(f"{before} to {after}", []).append(marks[after] - marks[before])
            marks = {}
    return {name: round(statistics.median(values), 2) for name, values in spans.items()}


def is_restarting(event):
    return event.get("state", {}).get("state") == "RESTARTING"


def report(events, faults):
    steps = new_steps(events)
    a_step = undisturbed_seconds(steps, faults)
    wall = steps[-1][0] - steps[0][0]
    rows = []
    for kind, begin, known in faults:
        if known is None:
            known = first_after(events, begin, is_restarting)
        step = next((at - begin for at, _ in steps if at >= begin + (known or 0)), None)
        rows.append({"fault": kind, "known_seconds": known, "next_new_step_seconds": step})
    return {
        "wall_seconds": round(wall, 1),
        "faults": len(faults),
        "effective": round((len(steps) - 1) * a_step / wall, 4),
        "step_seconds": round(a_step, 4),
        "new_steps": len(steps),
        "steps_done": sum("step" in event for event in events),
        "attempts": events[-1].get("attempt"),
        "restart": attempt_times(events),
        "each": rows,
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--events", type=pathlib.Path, help="a file for them")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--every", type=float, default=60, help="seconds between faults")
    parser.add_argument("--kinds", default="rank", help="in turn: rank, hang, agent, host")
    parser.add_argument("--hang-timeout", type=int, default=20, help="resources.hang_timeout")
    parser.add_argument("--save-steps", type=int, default=10)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    options.assets = options.assets.resolve()
    with cluster(options.bin) as service, service.up("--cpu-slots", "2"):
        events, faults = run(options, service)
    if options.events:
        options.events.write_text("\n".join(json.dumps(event) for event in events))
    print(json.dumps(report(events, faults), indent=1))


if __name__ == "__main__":
    main()
