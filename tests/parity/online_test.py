#!/usr/bin/env python3
"""Stops runs in the middle of a generation, and goes on: completions keep the log-probabilities
that they had when training came to them.

    online_test.py --trainer PATH --assets DIR
"""

import functools
import json
import shutil

import ranks
import trials
from trials import expect, files_of, final_directory, steps_of, train
from weights import relative_error

ROWS = 12  # of a generation
SAVED_STEP = 4  # the second of three passes over the second generation is next
TOLERANCE = 1e-6
LOSS_TERMS = 0.1  # losses are means of terms that large, of both signs
METRICS = (
    "loss",
    "gradNorm",
    "entropy",
    "kl",
    "clip_ratio/region_mean",
    "reward",
    "loss/value_avg",
    "val/clipfrac_avg",
)
METHODS = {
    "grpo": {"num_generations": 4, "num_iterations": 3, "beta": 0.1, "epsilon": 0.05},
    "rloo": {"num_generations": 4, "num_iterations": 3, "beta": 0.1, "epsilon": 0.05},
    "ppo": {"num_ppo_epochs": 3, "cliprange_value": 0.05, "kl_coef": 0.2},
}


def make_spec(options, method, world, output, **training):
    training = {
        "max_steps": 8,
        "per_device_train_batch_size": ROWS // world,
        "save_steps": SAVED_STEP,
    } | training
    fields = {f"method.{method}.{name}": value for name, value in METHODS[method].items()}
    if method == "ppo":
        fields["method.ppo.value_model_path"] = str(options.assets / "models" / "llama_reward")
    return trials.make_spec(
        options,
        output,
        world,
        method=method,
        model="llama",
        train="rollouts_judged" if method == "ppo" else "rollouts",
        fields=fields,
        **training,
    )


def metrics_of(step):
    return {
        metric: float(ranks.metric(step, metric))
        for metric in METRICS
        if metric in ("loss", "gradNorm") or metric in step["metrics"]
    }


def compare(resumed, whole, same_world):
    worst = 0.0
    for step in resumed:
        got, want = metrics_of(resumed[step]), metrics_of(whole[step])
        expect(got.keys() == want.keys(), f"step {step} has {sorted(got)}, not {sorted(want)}")
        for metric in got:
            size = max(abs(want[metric]), LOSS_TERMS if metric == "loss" else 0.0)
            error = abs(got[metric] - want[metric]) / size if size else abs(got[metric])
            limit = 0 if same_world else TOLERANCE
            expect(
                error <= limit, f"step {step}: {metric} is {got[metric]!r}, was {want[metric]!r}"
            )
            worst = max(worst, error)
    return worst


def goes_on(method, options, scratch):
    worst = 0.0
    whole = scratch / "whole"
    events = train(options, make_spec(options, method, 2, whole))
    steps, final = steps_of(events), files_of(final_directory(events))
    saved = whole / f"checkpoint-{SAVED_STEP}"
    for world in (2, 3):
        output = scratch / f"resumed-{world}"
        spec = make_spec(options, method, world, output, resume_from_checkpoint=str(saved))
        events = train(options, spec)
        resumed = steps_of(events)
        if world == 2:
            expect(files_of(final_directory(events)) == final, "the final weights are others")
        expect(min(resumed) == SAVED_STEP + 1, f"it went on with step {min(resumed)}")
        worst = max(worst, compare(resumed, steps, world == 2))
    return f"largest relative error {worst:.1e}"


def needs_what_was_saved(options, scratch):
    """Without the log-probabilities of then the policy of now would do, and the losses differ."""
    whole = scratch / "whole"
    steps = steps_of(train(options, make_spec(options, "grpo", 1, whole)))
    source = whole / f"checkpoint-{SAVED_STEP}"
    forgetful = scratch / f"checkpoint-{SAVED_STEP}"
    shutil.copytree(source, forgetful)
    state = json.loads((source / "state.json").read_text())
    expect(state["generation"]["row"] == str(3 * ROWS), f"the generation is {state['generation']}")
    del state["generation"]
    (forgetful / "state.json").write_text(json.dumps(state))
    spec = make_spec(options, "grpo", 1, scratch / "out", resume_from_checkpoint=str(forgetful))
    resumed = steps_of(train(options, spec))
    step = SAVED_STEP + 1
    error = relative_error(*(float(ranks.metric(run[step], "loss")) for run in (resumed, steps)))
    expect(error > 1e-3, f"the loss differs by {error:.1e} of itself only")
    return f"the loss differs by {error:.1e} of itself"


def refuses_other_generations(options, scratch):
    whole = scratch / "whole"
    train(options, make_spec(options, "grpo", 1, whole))
    spec = make_spec(
        options,
        "grpo",
        1,
        scratch / "out",
        per_device_train_batch_size=2 * ROWS,
        resume_from_checkpoint=str(whole / f"checkpoint-{SAVED_STEP}"),
    )
    _, lines = trials.run_alone(options, spec, scratch)
    message = lines[-1].get("failed", {}).get("message", "")
    expect("generations had 12 rows then and have 24 now" in message, f"it said: {message!r}")
    return "named"


def main():
    checks = [functools.partial(goes_on, method) for method in METHODS]
    for check, method in zip(checks, METHODS, strict=True):
        check.__name__ = f"{method} goes on"
    trials.run_each(__doc__, *checks, needs_what_was_saved, refuses_other_generations)


if __name__ == "__main__":
    main()
