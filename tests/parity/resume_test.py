#!/usr/bin/env python3
"""Goes on from checkpoints with another number of ranks: the run must not notice.

    resume_test.py --trainer PATH --assets DIR [--all]

Three epochs of shuffled rows that fill neither their last microbatch nor their last accumulation
are saved in the middle of an epoch by one world size and continued by others in another output
directory. Every later step has the metrics of the run that was not interrupted: the same bits at
the same world size, 1e-6 relative at others. --all takes every pair of 1 to 4 ranks.
"""

import itertools
import json
import pathlib
import tempfile

import ranks
import trials
from trials import Trials, expect, steps_of, train
from weights import relative_error

TOLERANCE = 1e-6
GLOBAL_BATCH = 12
SAVED_STEP = 3
PAIRS = [(1, 3), (2, 2), (2, 4), (3, 1)]
METRICS = ("loss", "gradNorm", "learningRate", "numTokens", "epoch", "entropy")


def make_spec(options, world, output, **training):
    training = {
        "num_train_epochs": 3,
        "per_device_train_batch_size": GLOBAL_BATCH // world,
        "gradient_accumulation_steps": 2,
        "warmup_steps": 2,
        "weight_decay": 0.01,
        "save_steps": SAVED_STEP,
    } | training
    return trials.make_spec(options, output, world, train="few", **training)


def compare(resumed, whole, same_world):
    """The largest relative error of a metric after the saved step."""
    expect(min(resumed) == SAVED_STEP + 1, f"it went on with step {min(resumed)}")
    expect(max(resumed) == max(whole), f"it ended after {max(resumed)} steps, not {max(whole)}")
    worst = 0.0
    for step, metric in itertools.product(resumed, METRICS):
        got, want = (float(ranks.metric(run[step], metric)) for run in (resumed, whole))
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
        options,
        world,
        output,
        resume_from_checkpoint=str(source / f"checkpoint-{SAVED_STEP}"),
    )
    events = train(options, spec)
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
        options,
        2,
        scratch / "other-batches",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        resume_from_checkpoint=str(source),
    )
    steps = steps_of(train(options, spec))
    # 7 rows are left of the second epoch: 4 and 3; then 31 rows in 8 steps.
    expect(sorted(steps) == list(range(4, 14)), f"the steps were {sorted(steps)}")
    epochs = [steps[step]["epoch"] for step in (4, 5, 13)]
    expect(epochs == [1.875, 2.0, 3.0], f"the epochs were {epochs}")
    whole = scratch / "whole-epochs"
    plain = make_spec(options, 1, whole, save_strategy="no")
    tokens = int(steps_of(train(options, plain))[6]["numTokens"])
    got = int(steps[13]["numTokens"])
    expect(got == tokens, f"three epochs had {got} tokens, not {tokens}")
    return "each row once"


def failure_of(options, spec, scratch, *flags):
    _, lines = trials.run_alone(options, spec, scratch, *flags)
    violations = lines[-1].get("violations", [])
    return violations[0] if violations else lines[-1].get("failed", {})


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
        spec = make_spec(options, 1, output, resume_from_checkpoint=str(source))
        for section, fields in change.items():
            spec[section] |= fields
        failure = failure_of(options, spec, scratch, *(["--check"] if at_check else []))
        expect(sentence in failure.get("message", ""), f"{change}: {failure}")
        expect(failure["kind"] == "USER", f"{change}: {failure}")
    return f"{len(cases)} mistakes named"


def main():
    options = trials.parse(
        __doc__,
        lambda parser: parser.add_argument(
            "--all", action="store_true", help="every pair; else a few"
        ),
    )
    pairs = list(itertools.product(range(1, 5), repeat=2)) if options.all else PAIRS
    checks = Trials()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        whole = {}
        for world in sorted({saved for saved, _ in pairs}):
            spec = make_spec(options, world, scratch / f"saved-by-{world}")
            whole[world] = steps_of(train(options, spec))
        for saved, world in pairs:
            name = f"{saved} to {world} ranks"
            checks.attempt(name, check_pair, options, scratch, whole[saved], saved, world)
        checks.attempt("other batches", check_other_batches, options, scratch)
        checks.attempt("refusals", check_refusals, options, scratch)
    checks.finish()


if __name__ == "__main__":
    main()
