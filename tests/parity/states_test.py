#!/usr/bin/env python3
"""Trains real ranks under each way to shard, offload and update weights.

    states_test.py --trainer PATH --assets DIR

Every exact technique gives the plain run: the same bits of loss on two ranks, and of the final
weights. Optimizer states in fewer bits are saved and taken up again by two ranks, to the bit, and
by one, whose next step has the same loss.
"""

import pathlib
import tempfile

import trials
from trials import Trials, expect, steps_of, train
from weights import relative_error

STEPS = 6
SAVED_STEP = 3
EXACT = {
    "zero1": {"sharding": "zero1"},
    "zero2": {"sharding": "zero2"},
    "last block kept": {"reshard_keeps_last": 1},
    "states in host memory": {"offload_optimizer_device": "cpu"},
    "weights in host memory": {"offload_param_device": "cpu"},
    "update in backward": {"optimizer_in_backward": True},
    "all": {
        "sharding": "zero2",
        "offload_optimizer_device": "cpu",
        "offload_param_device": "cpu",
        "optimizer_in_backward": True,
    },
}


def make_spec(options, world, output, memory, **training):
    training = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 4 // world,
        "max_grad_norm": 0,
        "save_steps": SAVED_STEP,
    } | training
    return trials.make_spec(
        options, output, world, train="few", fields={"memory": memory}, **training
    )


def check_exact(options, scratch, plain, name, memory):
    spec = make_spec(options, 2, scratch / name, memory, save_strategy="no")
    steps = steps_of(train(options, spec))
    for step, metrics in plain.items():
        for metric in ("loss", "gradNorm"):
            got, want = steps[step][metric], metrics[metric]
            # The norm is a sum over units, which backward comes to in another order.
            limit = 1e-12 if metric == "gradNorm" else 0
            expect(relative_error(got, want) <= limit, f"step {step}: {metric} {got}, not {want}")
    weights = [
        (scratch / run / "final" / "model.safetensors").read_bytes() for run in ("plain", name)
    ]
    expect(weights[0] == weights[1], "the final weights differ")
    return "the plain run"


def check_states(options, scratch, plain, dtype):
    memory = {"optimizer_state_dtype": dtype}
    source = scratch / dtype
    whole = steps_of(train(options, make_spec(options, 2, source, memory)))
    # Not exact, but near: the weights follow.
    error = max(relative_error(whole[step]["loss"], plain[step]["loss"]) for step in plain)
    expect(error <= 1e-2, f"the loss is off by {error:.1e}")
    if dtype != "float32":
        expect(whole[STEPS]["loss"] != plain[STEPS]["loss"], "nothing was rounded")
    for world in (2, 1):
        spec = make_spec(
            options,
            world,
            scratch / f"{dtype}-{world}",
            memory,
            resume_from_checkpoint=str(source / f"checkpoint-{SAVED_STEP}"),
        )
        resumed = steps_of(train(options, spec))
        expect(min(resumed) == SAVED_STEP + 1, f"it went on with step {min(resumed)}")
        for step in resumed if world == 2 else [SAVED_STEP + 1, SAVED_STEP + 2]:
            off = relative_error(resumed[step]["loss"], whole[step]["loss"])
            limit = 0 if world == 2 else 1e-6
            # Where ranks are added up in another order, a state may be rounded to another value.
            if world == 1 and step > SAVED_STEP + 1:
                limit = 1e-4
            expect(off <= limit, f"{world} ranks, step {step}: the loss is off by {off:.1e}")
    return f"largest relative error {error:.1e}"


def check_not_finite(options, scratch):
    """Weights that took in what is not finite are never saved."""
    output = scratch / "not-finite"
    spec = make_spec(
        options,
        1,
        output,
        {"optimizer_in_backward": True},
        learning_rate=1e30,
        save_steps=1,
        async_save=False,
    )
    _, events = trials.run_alone(options, spec, scratch)
    failure = events[-1].get("failed", {})
    expect("at step 2 with training.learning_rate = 1e+30" in failure.get("message", ""), failure)
    saved = sorted(path.name for path in output.glob("checkpoint-*"))
    expect(saved == ["checkpoint-1"], f"there are {saved}")
    return failure["message"]


def main():
    options = trials.parse(__doc__)
    checks = Trials()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        spec = make_spec(options, 2, scratch / "plain", {}, save_strategy="no")
        plain = steps_of(train(options, spec))
        for name, memory in EXACT.items():
            checks.attempt(name, check_exact, options, scratch, plain, name, memory)
        checks.attempt("what is not finite", check_not_finite, options, scratch)
        for dtype in ("float32", "bfloat16", "int8"):
            checks.attempt(f"states in {dtype}", check_states, options, scratch, plain, dtype)
    checks.finish()


if __name__ == "__main__":
    main()
