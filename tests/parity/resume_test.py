#!/usr/bin/env python3
"""Goes on from checkpoints with another number of ranks: the run must not notice.

    resume_test.py --trainer PATH --assets DIR [--all]

Three epochs of shuffled rows that fill neither their last microbatch nor their last accumulation
are saved in the middle of an epoch by one world size and continued by others in another output
directory. Every later step has the metrics of the run that was not interrupted: the same bits at
the same world size, 1e-6 relative at others. --all takes every pair of 1 to 4 ranks.
"""

import argparse
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

import ranks
from parity_test import relative_error

TOLERANCE = 1e-6
GLOBAL_BATCH = 12
SAVED_STEP = 3
PAIRS = [(1, 3), (2, 2), (2, 4), (3, 1)]
METRICS = ("loss", "gradNorm", "learningRate", "numTokens", "epoch", "entropy")


class ResumeError(Exception):
    """What a resumed run did otherwise than the uninterrupted one."""


def expect(condition, message):
    if not condition:
        raise ResumeError(message)


def make_spec(assets, world, output, **training):
    return {
        "name": "resume",
        "method": {"sft": {"max_length": 64}},
        "model": {
            "path": str(assets / "models" / "qwen3"),
            "tokenizer": str(assets / "tokenizer"),
        },
        "data": {"train": str(assets / "data" / "few.jsonl")},
        "training": {
            "num_train_epochs": 3,
            "per_device_train_batch_size": GLOBAL_BATCH // world,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-3,
            "warmup_steps": 2,
            "weight_decay": 0.01,
            "save_steps": SAVED_STEP,
            "output_dir": str(output),
        }
        | training,
        "parallelism": {"num_processes": world},
        "resources": {"device": "cpu", "cpu_threads": 1},
    }


def train(options, spec, world):
    """Rank 0's events."""
    with tempfile.TemporaryDirectory() as scratch:
        return ranks.run(options.trainer, spec, world, scratch)


def steps_of(events):
    return {event["step"]["step"]: event["step"] for event in events if "step" in event}


def compare(resumed, whole, same_world):
    """The largest relative error of a metric after the saved step."""
    expect(min(resumed) == SAVED_STEP + 1, f"it went on with step {min(resumed)}")
    expect(max(resumed) == max(whole), f"it ended after {max(resumed)} steps, not {max(whole)}")
    worst = 0.0
    for step, metric in itertools.product(resumed, METRICS):
        got, want = (float(run[step].get(metric, 0)) for run in (resumed, whole))
        error = relative_error(got, want)
        limit = 0 if same_world or metric in ("numTokens", "learningRate", "epoch") else TOLERANCE
        expect(error <= limit, f"step {step}: {metric} is {got!r}, it was {want!r}")
        worst = max(worst, error)
    return worst


def final_bytes(output):
    return (output / "final" / "model.safetensors").read_bytes()


def check_pair(options, scratch, whole, saved_world, world):
    source = scratch / f"saved-by-{saved_world}"
    output = scratch / f"resumed-{saved_world}-{world}"
    spec = make_spec(
        options.assets,
        world,
        output,
        resume_from_checkpoint=str(source / f"checkpoint-{SAVED_STEP}"),
    )
    events = train(options, spec, world)
    expect(events[0]["started"]["resumedStep"] == SAVED_STEP, f"it began with {events[0]}")
    worst = compare(steps_of(events), whole, saved_world == world)
    if saved_world == world:
        expect(final_bytes(output) == final_bytes(source), "the final weights differ")
    return f"largest relative error {worst:.1e}"


def check_other_batches(options, scratch):
    """At a row that is no border of the new microbatches: every row of the epoch once."""
    source = scratch / f"saved-by-{PAIRS[0][0]}" / f"checkpoint-{SAVED_STEP}"
    state = json.loads((source / "state.json").read_text())
    expect(
        (state["epoch"], state["row"], state["numRows"]) == (1, "24", "31"),
        f"the checkpoint stands at {state}",
    )
    spec = make_spec(
        options.assets,
        2,
        scratch / "other-batches",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        resume_from_checkpoint=str(source),
    )
    steps = steps_of(train(options, spec, 2))
    # 7 rows are left of the second epoch: 4 and 3; then 31 rows in 8 steps.
    expect(sorted(steps) == list(range(4, 14)), f"the steps were {sorted(steps)}")
    epochs = [steps[step]["epoch"] for step in (4, 5, 13)]
    expect(epochs == [1.875, 2.0, 3.0], f"the epochs were {epochs}")
    whole = scratch / "whole-epochs"
    plain = make_spec(options.assets, 1, whole, save_strategy="no")
    tokens = int(steps_of(train(options, plain, 1))[6]["numTokens"])
    got = int(steps[13]["numTokens"])
    expect(got == tokens, f"three epochs had {got} tokens, not {tokens}")
    return "each row once"


def failure_of(options, spec, scratch, *flags):
    path = scratch / "input.json"
    path.write_text(json.dumps({"spec": spec, "job_id": "resume", "attempt": 1}))
    done = subprocess.run(
        [options.trainer, "--input", path, *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ranks.TIMEOUT_SECONDS,
        check=False,
    )
    last = json.loads(done.stdout.splitlines()[-1])
    violations = last.get("violations", [])
    return violations[0] if violations else last.get("failed", {})


def check_refusals(options, scratch):
    source = scratch / f"saved-by-{PAIRS[0][0]}" / f"checkpoint-{SAVED_STEP}"
    output = scratch / "refused"
    other_model = {"path": str(options.assets / "models" / "llama")}
    cases = [
        ({"training": {"resume_from_checkpoint": str(scratch / "none")}}, True, "neither is nor"),
        ({"training": {"resume_from_checkpoint": "latest"}}, True, "neither is nor holds"),
        ({"model": other_model}, True, "elements in it, the model has"),
        ({"training": {"seed": 7}}, False, "training.seed was 42 then and is now 7"),
        ({"data": {"train": str(options.assets / "data" / "pads.jsonl")}}, False, "makes 60 rows"),
        ({"training": {"shuffle_dataset": False}}, False, "were shuffled then"),
    ]
    for change, at_check, sentence in cases:
        spec = make_spec(options.assets, 1, output, resume_from_checkpoint=str(source))
        for section, fields in change.items():
            spec[section] |= fields
        failure = failure_of(options, spec, scratch, *(["--check"] if at_check else []))
        expect(sentence in failure.get("message", ""), f"{change}: {failure}")
        expect(failure["kind"] == "USER", f"{change}: {failure}")
    return f"{len(cases)} mistakes named"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--all", action="store_true", help="every pair; else a few")
    options = parser.parse_args()
    options.assets = options.assets.resolve()
    pairs = list(itertools.product(range(1, 5), repeat=2)) if options.all else PAIRS
    failed = False

    def attempt(name, body, *arguments):
        nonlocal failed
        try:
            print(f"ok: {name}: {body(options, *arguments)}", flush=True)
        except (ResumeError, ranks.RunError) as problem:
            failed = True
            print(f"FAILED: {name}: {problem}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        whole = {}
        for world in sorted({saved for saved, _ in pairs}):
            spec = make_spec(options.assets, world, scratch / f"saved-by-{world}")
            whole[world] = steps_of(train(options, spec, world))
        for saved, world in pairs:
            attempt(f"{saved} to {world} ranks", check_pair, scratch, whole[saved], saved, world)
        attempt("other batches", check_other_batches, scratch)
        attempt("refusals", check_refusals, scratch)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
