#!/usr/bin/env python3
"""Checkpoints that are written while training goes on: what they hold, and how a write fails.

    async_save_test.py --trainer PATH --assets DIR

Two ranks save after every other step, so that saves come before the last one ended. Every
checkpoint, and the final directory, holds what a run that waits for each save has there. A
write that fails in the background (files may not grow as large as a checkpoint) ends the job with
an error that names the file and the rank, and leaves what was complete.
"""

import argparse
import json
import pathlib
import resource
import sys
import tempfile

import ranks

STEPS, SAVE_STEPS, WORLD = 6, 2, 2
# Less than a rank's part of a checkpoint of the model, more than all else a run writes.
FILE_LIMIT_BYTES = 64 << 10


class SaveError(Exception):
    """A checkpoint, or an error, that is otherwise than it should be."""


def expect(condition, message):
    if not condition:
        raise SaveError(message)


def make_spec(assets, output, **training):
    return {
        "name": "save",
        "method": {"sft": {"max_length": 64}},
        "model": {
            "path": str(assets / "models" / "qwen3"),
            "tokenizer": str(assets / "tokenizer"),
        },
        "data": {"train": [str(assets / "data" / "short.jsonl")]},
        "training": {
            "max_steps": STEPS,
            "per_device_train_batch_size": 2,
            "learning_rate": 1e-3,
            "weight_decay": 0.01,
            "save_steps": SAVE_STEPS,
            "output_dir": str(output),
        }
        | training,
        "parallelism": {"num_processes": WORLD},
        "resources": {"device": "cpu", "cpu_threads": 1},
    }


def train(options, spec):
    with tempfile.TemporaryDirectory() as scratch:
        return ranks.run(options.trainer, spec, WORLD, scratch)


def files_of(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def meaning(name, contents):
    # ProtoJSON has maps in any order.
    return json.loads(contents) if name.endswith("state.json") else contents


def check_same_bytes(options, scratch):
    events = train(options, make_spec(options.assets, scratch / "async"))
    train(options, make_spec(options.assets, scratch / "sync", async_save=False))
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
    train(options, make_spec(options.assets, output, max_steps=SAVE_STEPS))
    before = files_of(output / f"checkpoint-{SAVE_STEPS}")
    name = f"checkpoint-{STEPS}.tmp/rank-0000"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, limits[1]))
    try:
        train(options, make_spec(options.assets, output, max_steps=STEPS + 1, save_steps=STEPS))
    except ranks.RunError as error:
        expect('"failed"' in str(error), f"a rank gave no reason: {error}")
        expect(name in str(error) and "File too large" in str(error), f"it failed with {error}")
    else:
        raise SaveError("a job whose checkpoint cannot be written succeeded")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    expect(files_of(output / f"checkpoint-{SAVE_STEPS}") == before, "an earlier one was changed")
    left = sorted(path.name for path in output.iterdir())
    expect(left == [f"checkpoint-{SAVE_STEPS}", "final"], f"there are {left}")
    return "the file is named"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    options.assets = options.assets.resolve()
    failed = False
    for body in (check_same_bytes, check_failed_write):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                print(f"ok: {body.__name__}: {body(options, pathlib.Path(scratch))}", flush=True)
            except (SaveError, ranks.RunError) as problem:
                failed = True
                print(f"FAILED: {body.__name__}: {problem}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
