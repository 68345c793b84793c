#!/usr/bin/env python3
"""References of preference methods: in checkpoints, in the ledger, and in the data cache.

    reference_test.py --trainer PATH --assets DIR

A run whose reference follows the policy goes on from a checkpoint with the numbers of the run that
was not interrupted: the same bits at the same world size. Scores that were computed before training
are found by the next job, and then no model is held for them.
"""

import argparse
import pathlib
import sys
import tempfile

import ranks
from weights import relative_error

STEPS, SAVED_STEP = 5, 3
METRICS = ["loss", "gradNorm", "rewards/chosen", "rewards/margins", "logps/rejected", "epoch"]
TOLERANCE = 1e-5


class RunDiffersError(Exception):
    """What a run did otherwise than it should."""


def expect(condition, message):
    if not condition:
        raise RunDiffersError(message)


def make_spec(assets, output, world, method, data, **training):
    (name,) = method
    return {
        "name": "reference",
        "method": {name: {"max_length": 96} | method[name]},
        "model": {"path": str(assets / "models" / "qwen3"), "tokenizer": str(assets / "tokenizer")},
        "data": {
            "train": str(assets / "data" / f"{data}.jsonl"),
            "cache_dir": str(output.parent / "cache"),
        },
        "training": {
            "max_steps": STEPS,
            "per_device_train_batch_size": 8,
            "accelerator_config": {"split_batches": True},
            "learning_rate": 1e-3,
            "save_steps": SAVED_STEP,
            "output_dir": str(output),
        }
        | training,
        "parallelism": {"num_processes": world},
        "resources": {"device": "cpu", "cpu_threads": 1},
    }


def train(options, spec):
    with tempfile.TemporaryDirectory() as scratch:
        return ranks.run(options.trainer, spec, spec["parallelism"]["num_processes"], scratch)


def steps_of(events):
    return {event["step"]["step"]: event["step"] for event in events if "step" in event}


def owners_of(events):
    (*_, last) = [event["memory"] for event in events if "memory" in event]
    return {owner["owner"]: int(owner.get("peakBytes", 0)) for owner in last["owners"]}


def check_resume(options, scratch, method, data):
    """The last sync before the checkpoint was a step earlier: the reference is neither model."""
    source = scratch / "whole"
    whole = steps_of(train(options, make_spec(options.assets, source, 2, method, data)))
    worst = 0.0
    for world in (2, 1):
        spec = make_spec(
            options.assets,
            scratch / f"resumed-{world}",
            world,
            method,
            data,
            resume_from_checkpoint=str(source / f"checkpoint-{SAVED_STEP}"),
        )
        resumed = steps_of(train(options, spec))
        expect(sorted(resumed) == [4, 5], f"the resumed steps are {sorted(resumed)}")
        for step, name in ((step, name) for step in resumed for name in METRICS):
            got, want = (float(ranks.metric(run[step], name)) for run in (resumed, whole))
            error = relative_error(got, want)
            limit = 0 if world == 2 else 100 * TOLERANCE if "rewards" in name else TOLERANCE
            expect(error <= limit, f"world {world}, step {step}: {name} is {got!r}, was {want!r}")
            worst = max(worst, error)
    return f"largest relative error {worst:.1e}"


def check_precompute(options, scratch):
    """Twice, and beside a run that holds the reference."""
    beside = train(options, make_spec(options.assets, scratch / "beside", 2, {"dpo": {}}, PAIRS))
    method = {"dpo": {"precompute_ref_log_probs": True}}
    cache = scratch / "cache" / "tokens"
    before = set(cache.iterdir())
    first = train(options, make_spec(options.assets, scratch / "first", 2, method, PAIRS))
    made = set(cache.iterdir()) - before
    expect(len(made) == 1, f"the pass left {len(made)} entries in the cache")
    second = train(options, make_spec(options.assets, scratch / "second", 2, method, PAIRS))
    expect(set(cache.iterdir()) == before | made, "the second run made other entries")
    expect(steps_of(first).keys() == steps_of(second).keys(), "the runs took other steps")
    for step, metrics in steps_of(second).items():
        for name in METRICS:
            same = ranks.metric(metrics, name) == ranks.metric(steps_of(first)[step], name)
            expect(same, f"step {step}: the scores of the cache give another {name}")
        error = relative_error(metrics["loss"], steps_of(beside)[step]["loss"])
        expect(error <= TOLERANCE, f"step {step}: the loss is {metrics['loss']} with scores")
    expect(owners_of(beside)["reference"] > 0, "nobody owns the reference")
    expect(owners_of(second).get("reference", 0) == 0, "a reference is held beside its scores")
    return "one entry in the cache"


PAIRS = "preferences"
SYNC = {"sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 0.5}
CHECKS = {
    "resume_dpo": lambda options, scratch: check_resume(options, scratch, {"dpo": SYNC}, PAIRS),
    "resume_kto": lambda options, scratch: check_resume(options, scratch, {"kto": SYNC}, "judged"),
    "precompute": check_precompute,
}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    failed = False
    for name, check in CHECKS.items():
        with tempfile.TemporaryDirectory() as scratch:
            try:
                print(f"ok: {name}: {check(options, pathlib.Path(scratch))}", flush=True)
            except (RunDiffersError, ranks.RunError) as error:
                failed = True
                print(f"FAILED: {name}: {error}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
