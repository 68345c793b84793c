#!/usr/bin/env python3
"""A job that makes its completions and has a server judge them, of which either dies.

online_test.py --bin DIR --assets DIR

Whatever dies, the job must end SUCCEEDED with the very weights of a run in which nothing did.
"""

import argparse
import json
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from cluster import Follower, cluster, expect, wait_until
from jobs import sft_job, sha256
from reward_server import RewardServer, build_package
from submitted import losses_of

STEPS = 12
KILLS = (1, 4)  # once these steps were seen
AHEAD = {"generation": {"async": True}, "parallelism": {"cp_size": 2}}
# Judges take their time, so that a kill arrives well before the job's end.
PROGRAM = """
import os, time
from tessera.rewards import reward, serve

@reward
def vowels(completions):
    time.sleep(0.1)
    return [sum(letter in "aeiou" for letter in text) / 10 for text in completions]

serve(address=os.environ["ADDRESS"])
"""


class Judged:
    """A service, and a reward server at one address."""

    def __init__(self, options, service):
        self.options, self.service = options, service
        self.package = build_package(service.directory)
        self.prompts = service.directory / "prompts.jsonl"
        lines = [json.dumps({"prompt": f"tile {i:02d}"}) for i in range(8)]
        self.prompts.write_text("\n".join(lines) + "\n")
        self.address = f"unix://{service.directory}/rewards.sock"
        self.start()

    def start(self):
        self.server = RewardServer(self.package, PROGRAM, ADDRESS=self.address)

    def job(self, name, generation, parallelism):
        job = sft_job(
            self.options.assets,
            self.service.directory / name,
            2,
            max_steps=STEPS,
            save_steps=1,
            # Of each data rank: ranks that share a stream are one.
            per_device_train_batch_size=4 * parallelism.get("cp_size", 1),
        )
        job["parallelism"] |= parallelism
        sizes = {"num_generations": 4, "max_completion_length": 24, "num_iterations": 2}
        return job | {
            "name": name,
            "method": {"grpo": sizes | {"steps_per_generation": 1}},
            "data": {"train": str(self.prompts)},
            "generation": generation,
            "reward_funcs": [{"name": "vowels", "server": {"address": self.address}}],
        }

    def run(self, name, on_event=lambda event: None, generation=None, parallelism=None):
        """(the events, the hash of the weights) of a run that succeeds."""
        job = self.job(name, generation or {}, parallelism or {})
        path = self.service.write_job(name, job)
        follower = Follower(self.service, "run", str(path))
        follower.follow(on_event)
        code, errors = follower.end()
        expect(code == 0, f"{name} exited with {code}: {errors}")
        final = self.service.directory / name / "final/model.safetensors"
        return follower.events, sha256(final)


def test_server_dies(judged, whole):
    """The job says what it waits for, runs on when that is back, and is not started anew."""
    waited, told = [], {}

    def on_event(event):
        if event.get("step", {}).get("step") == 1:
            judged.server.kill()
        if "waiting" not in event:
            return
        waited.append(event["waiting"].get("reason", ""))
        if len(waited) == 1:
            (job,) = judged.service.query("list")[:1]
            told.update({name: job[name] for name in ("state", "reason")})
            judged.start()

    events, weights = judged.run("orphaned", on_event)
    expect(waited and waited[-1] == "", f"it waited for {waited}")
    expect("reward_funcs[0]" in waited[0], f"it waited for {waited[0]!r}")
    expect(told == {"state": "RUNNING", "reason": waited[0]}, f"the job is {told}")
    states = [event["state"]["state"] for event in events if "state" in event]
    expect("RESTARTING" not in states, f"states {states}")
    expect(losses_of(events) == whole[0], "the losses differ")
    expect(weights == whole[1], "the weights differ")


def kill_at_steps(judged, whole, name, pid_at):
    """Kills pid_at(step) once each of KILLS was seen. Returns how often the job was restarted."""
    killed = []

    def on_event(event):
        step = event.get("step", {}).get("step")
        if step not in KILLS or step in killed:
            return
        killed.append(step)
        os.kill(pid_at(step), signal.SIGKILL)

    events, weights = judged.run(name, on_event)
    expect(killed == list(KILLS), f"something was killed at {killed}")
    expect(losses_of(events) == whole[0], "the losses differ")
    expect(weights == whole[1], "the weights differ")
    states = [event["state"]["state"] for event in events if "state" in event]
    return states.count("RESTARTING")


def test_rank_dies(judged, whole):
    """The job goes on from its last step, with the completions that it is in the middle of."""

    def rank_at(step):
        return wait_until(lambda: judged.service.rank_pid(step % 2), "a rank")

    restarts = kill_at_steps(judged, whole, "bereaved", rank_at)
    expect(restarts == len(KILLS), f"{restarts} restarts")


def test_coordinator_dies(judged, whole):
    """The ranks make completions, have them judged and train as if nothing had been."""

    def coordinator_at(_step):
        (pid,) = wait_until(lambda: judged.service.pids("tesserad"), "the coordinator")
        return pid

    restarts = kill_at_steps(judged, whole, "headless", coordinator_at)
    expect(restarts == 0, f"{restarts} restarts")


def test_both_die(judged):
    """Completions that were made ahead are judged when the server is back, and go on with a run; of
    ranks that share a stream."""
    events, weights = judged.run("ahead", **AHEAD)
    whole = losses_of(events)
    killed, waited = [], []

    def on_event(event):
        step = event.get("step", {}).get("step")
        if step == KILLS[1] and not killed:
            killed.append(step)
            judged.server.kill()
            pid = wait_until(lambda: judged.service.rank_pid(1), "a rank")
            os.kill(pid, signal.SIGKILL)
        if "waiting" in event:
            waited.append(event["waiting"].get("reason", ""))
            if len(waited) == 1:
                judged.start()

    events, weights_then = judged.run("ahead-bereaved", on_event, **AHEAD)
    states = [event["state"]["state"] for event in events if "state" in event]
    expect(states.count("RESTARTING") == 1, f"states {states}")
    expect(waited and waited[-1] == "", f"it waited for {waited}")
    expect(losses_of(events) == whole, "the losses differ")
    expect(weights_then == weights, "the weights differ")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with cluster(options.bin) as service, service.up("--cpu-slots", "2"):
        judged = Judged(options, service)
        try:
            events, weights = judged.run("whole")
            whole = losses_of(events), weights
            expect(sorted(whole[0]) == list(range(1, STEPS + 1)), f"steps {sorted(whole[0])}")
            test_server_dies(judged, whole)
            print("ok: a reward server that dies", flush=True)
            test_rank_dies(judged, whole)
            print("ok: ranks that die", flush=True)
            test_coordinator_dies(judged, whole)
            print("ok: a coordinator that dies", flush=True)
            test_both_die(judged)
            print("ok: both, of a job that generates ahead", flush=True)
        finally:
            judged.server.end()


if __name__ == "__main__":
    main()
