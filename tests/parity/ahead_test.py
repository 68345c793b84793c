#!/usr/bin/env python3
"""Runs jobs that make completions one generation ahead of the steps that train on them.

ahead_test.py --trainer PATH --assets DIR
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import live_test
import trials
from live_test import ROWS, STEPS, compare, recorded
from reward_server import RewardServer, build_package
from trainer_inputs import write_inputs
from trials import expect, steps_of, train

AHEAD = {"generation.async": True}
PER_GENERATION = 4  # steps: two passes over two microbatches
# Waits until it is told that the steps which train on the generation before have been logged.
PROGRAM = """
import os
from tessera.rewards import reward, serve

told = os.fdopen(os.open(os.environ["TOLD"], os.O_RDWR))
asked = open(os.environ["ASKED"], "a", buffering=1)
calls = []

@reward
def patient(completions, step):
    asked.write(f"{step}\\n")
    calls.append(step)
    if len(calls) > 1:
        told.readline()
    return [len(text) / 100 for text in completions]

serve(address="127.0.0.1:0")
"""


def make_spec(options, scratch, name, method="grpo", world=1, *, fields=None, **training):
    return live_test.make_spec(
        options, scratch, name, method, world, fields=AHEAD | (fields or {}), **training
    )


def recording(directory):
    return {"generation.record_to": str(directory)}


def staleness_is_told(options, scratch):
    """Of each step, ahead and not; the first generation is the same."""
    ahead, record = scratch / "ahead", scratch / "record"
    got = steps_of(train(options, make_spec(options, scratch, "out", fields=recording(ahead))))
    plain = live_test.make_spec(options, scratch, "plain", fields=recording(record))
    want = steps_of(train(options, plain))

    def told(steps):
        return [steps[step]["metrics"]["sampling/staleness"] for step in sorted(steps)]

    first = list(range(PER_GENERATION))
    later = [PER_GENERATION + step for step in first]
    expect(told(got) == (first + 3 * later)[:STEPS], f"ahead: {told(got)}")
    expect(told(want) == (4 * first)[:STEPS], f"not ahead: {told(want)}")
    lines, plain_lines = recorded(ahead), recorded(record)
    expect(len(lines) == len(plain_lines) == 4 * ROWS, f"{len(lines)} completions are recorded")
    expect(lines[:ROWS] == plain_lines[:ROWS], "the first generation is another one")
    expect(lines[ROWS:] != plain_lines[ROWS:], "later ones are of the same weights")
    sampled = [line["step"] for line in lines[::ROWS]]
    expect(sampled == [0, 0, 4, 8], f"generations were sampled after steps {sampled}")
    return f"{told(got)}"


def goes_on(method, options, scratch):
    """To the bit, with what was made ahead."""
    record = scratch / "record"
    training = {"save_strategy": "steps", "save_steps": 1}
    fields = recording(record)
    spec = make_spec(options, scratch, "whole", method, 2, fields=fields, **training)
    steps = steps_of(train(options, spec))
    files = trials.files_of(record)
    for saved in (1, 4, 6, 12, 13):
        copy = scratch / f"record-{saved}"
        shutil.copytree(record, copy)
        resumed = make_spec(
            options,
            scratch,
            f"resumed-{saved}",
            method,
            2,
            fields=recording(copy),
            resume_from_checkpoint=str(scratch / "whole" / f"checkpoint-{saved}"),
        )
        got = steps_of(train(options, resumed))
        expect(min(got) == saved + 1 and max(got) == STEPS, f"steps {min(got)} to {max(got)}")
        compare(got, steps)
        expect(trials.files_of(copy) == files, f"after step {saved} other files were recorded")
    return "to the bit"


def ranks_make_the_same(options, scratch):
    """Several generations a step, and none at all left at the end."""
    lines = {}
    for world in (1, 2):
        record = scratch / f"record-{world}"
        spec = make_spec(
            options,
            scratch,
            f"out-{world}",
            "online_dpo",
            world,
            fields=recording(record),
            per_device_train_batch_size=2 // world,
            gradient_accumulation_steps=2,
            max_steps=4,
        )
        spec["reward_funcs"] = live_test.REWARDS[:2]
        steps = steps_of(train(options, spec))
        told = [steps[step]["metrics"]["sampling/staleness"] for step in sorted(steps)]
        expect(told == [0, 1, 1, 1], f"staleness {told}")
        lines[world] = [(line["group"], line["completion_ids"]) for line in recorded(record)]
        expect(len(lines[world]) == 2 * 2 * 2 * 4, f"{len(lines[world])} completions")
    # Those of two steps are of the weights as they began.
    expect(lines[1][:16] == lines[2][:16], "two ranks made other completions")
    return f"{len(lines[1])} completions"


def slow_servers_hold_nothing_up(options, scratch):
    """A server that does not answer before the steps are logged which it would hold up."""
    told, asked = scratch / "told", scratch / "asked"
    os.mkfifo(told)
    server = RewardServer(build_package(scratch), PROGRAM, TOLD=str(told), ASKED=str(asked))
    try:
        spec = make_spec(options, scratch, "out", max_steps=12)
        spec["reward_funcs"] = [{"name": "patient", "server": {"address": server.address}}]
        (path,) = write_inputs(spec, 1, scratch, job_id="ahead")
        with (
            os.fdopen(os.open(told, os.O_RDWR), "w") as answer,
            subprocess.Popen(
                [options.trainer, "--input", path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
            ) as trainer,
        ):
            steps = 0
            for line in trainer.stdout:
                steps = json.loads(line).get("step", {}).get("step", steps)
                if '"step":{' in line and steps % PER_GENERATION == 0:
                    answer.write("go\n")
                    answer.flush()
        expect(trainer.returncode == 0 and steps == 12, f"it took {steps} steps")
    finally:
        server.end()
    # The second generation was asked about before the first step, and answered after the fourth.
    expect(asked.read_text().split() == ["0", "0", "4"], f"it was asked at {asked.read_text()}")
    return "three generations"


def takes_what_was_rehearsed(options, scratch):
    live_test.write_prompts(scratch / "prompts.jsonl", longer=False)
    spec = make_spec(options, scratch, "out", world=2)
    return live_test.compare_phases(options, spec, scratch)


def main():
    trials.run_each(
        __doc__,
        staleness_is_told,
        *(live_test.same(f"{method} goes on", goes_on, method) for method in ("grpo", "ppo")),
        ranks_make_the_same,
        slow_servers_hold_nothing_up,
        takes_what_was_rehearsed,
    )


if __name__ == "__main__":
    main()
