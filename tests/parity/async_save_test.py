#!/usr/bin/env python3
"""Checkpoints that are written while training goes on: what they hold, and how a write fails.

    async_save_test.py --trainer PATH --assets DIR

Two ranks save after every other step, so that saves come before the last one ended. Every
checkpoint, and the final directory, holds what a run that waits for each save has there. A
write that fails in the background (files may not grow as large as a checkpoint) ends the job with
an error that names the file and the rank, and leaves what was complete.
"""

import json
import pathlib
import resource

import ranks
import trials
from trials import TrialError, expect, files_of, train

STEPS, SAVE_STEPS, WORLD = 6, 2, 2
# Less than a rank's part of a checkpoint of the model, more than all else a run writes.
FILE_LIMIT_BYTES = 64 << 10


def make_spec(options, output, **training):
    training = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "weight_decay": 0.01,
        "save_steps": SAVE_STEPS,
    } | training
    return trials.make_spec(options, output, WORLD, **training)


def meaning(name, contents):
    if name.endswith("metrics.pb"):
        return None  # when steps were taken, and how fast
    # ProtoJSON has maps in any order.
    return json.loads(contents) if name.endswith("state.json") else contents


def check_same_bytes(options, scratch):
    events = train(options, make_spec(options, scratch / "async"))
    train(options, make_spec(options, scratch / "sync", async_save=False))
    got, want = files_of(scratch / "async"), files_of(scratch / "sync")
    expect(got.keys() == want.keys(), f"files {sorted(got)}, not {sorted(want)}")
    differing = [name for name in want if meaning(name, got[name]) != meaning(name, want[name])]
    expect(not differing, f"{differing} differ")
    saved = [event["checkpoint"] for event in events if "checkpoint" in event]
    steps = list(range(SAVE_STEPS, STEPS + 1, SAVE_STEPS))
    expect([save["step"] for save in saved] == steps, f"the events are {saved}")
    for save in saved:
        size = sum(map(len, files_of(pathlib.Path(save["path"])).values()))
        expect(int(save["bytes"]) == size, f"{save}, and there are {size} bytes")
        expect(save["seconds"] >= save["stallSeconds"] > 0, f"{save}")
    return f"{len(want)} files"


def check_failed_write(options, scratch):
    output = scratch / "limited"
    train(options, make_spec(options, output, max_steps=SAVE_STEPS))
    before = files_of(output / f"checkpoint-{SAVE_STEPS}")
    name = f"checkpoint-{STEPS}.tmp/rank-0000"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, limits[1]))
    try:
        train(options, make_spec(options, output, max_steps=STEPS + 1, save_steps=STEPS))
    except ranks.RunError as error:
        expect('"failed"' in str(error), f"a rank gave no reason: {error}")
        expect(name in str(error) and "File too large" in str(error), f"it failed with {error}")
    else:
        raise TrialError("a job whose checkpoint cannot be written succeeded")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    expect(files_of(output / f"checkpoint-{SAVE_STEPS}") == before, "an earlier one was changed")
    left = sorted(path.name for path in output.iterdir())
    expect(left == [f"checkpoint-{SAVE_STEPS}", "final"], f"there are {left}")
    return "the file is named"


if __name__ == "__main__":
    trials.run_each(__doc__, check_same_bytes, check_failed_write)
