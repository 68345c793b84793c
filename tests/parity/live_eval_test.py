#!/usr/bin/env python3
"""Runs jobs that make completions of held-out prompts, and evaluate by what they are worth.

live_eval_test.py --trainer PATH --assets DIR
"""

import json

import live_test
import trials
from live_test import compare
from trials import expect, steps_of, train

HELD_OUT = 5  # prompts: of two microbatches of eight completions the last has four
STEPS = 8
# Completions of different lengths are worth different sums.
STOPS = {"generation.stop_strings": ["e", "o"]}
REWARDS = [
    {"name": "short", "length": {"max_tokens": 12, "soft_punish_cache": 8}},
    {"name": "late", "regex": {"pattern": "[n-z]"}},
    {"name": "answer", "exact_answer": {"pattern": "(.)"}},
]
NAMES = {f"rewards/{reward['name']}/mean" for reward in REWARDS} | {
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "completions/mean_length",
    "completions/clipped_ratio",
    "entropy",
}


def make_spec(options, scratch, name, method="grpo", world=1, *, fields=None, **training):
    held_out = scratch / "held_out.jsonl"
    if not held_out.exists():
        records = [{"prompt": f"held {i}" + " out" * i, "answer": "e"} for i in range(HELD_OUT)]
        held_out.write_text("".join(json.dumps(record) + "\n" for record in records))
    training = {
        "max_steps": STEPS,
        "eval_strategy": "steps",
        "eval_steps": 4,
        "eval_on_start": True,
        "per_device_eval_batch_size": 8 // world,
    } | training
    grouped = method in ("grpo", "rloo")
    sizes = {f"method.{method}.num_generations_eval": 2} if grouped else {}
    spec = live_test.make_spec(
        options, scratch, name, method, world, fields=sizes | STOPS | (fields or {}), **training
    )
    spec["reward_funcs"] = REWARDS
    spec["data"]["eval"] = [str(held_out)]
    if method == "online_dpo":
        spec["reward_funcs"] = REWARDS[:2]  # a pair needs both rewards
        spec["training"]["per_device_train_batch_size"] = 4 // world
    return spec


def evaluations_of(events):
    return [event["eval"] for event in events if "eval" in event]


def numbers_of(evaluation):
    return {"loss": evaluation["loss"], "tokens": int(evaluation["numEvalTokens"])} | evaluation[
        "metrics"
    ]


def agree(got, want, tolerance):
    expect(got.keys() == want.keys(), f"metrics {got.keys() ^ want.keys()}")
    for name in want:
        error = abs(got[name] - want[name])
        expect(error <= tolerance * max(1, abs(want[name])), f"{name}: {got[name]}, {want[name]}")


def changes_nothing(options, scratch):
    """Each evaluation is there, and training is what it is without."""
    events = train(options, make_spec(options, scratch, "out"))
    told = evaluations_of(events)
    expect([each.get("step", 0) for each in told] == [0, 4, 8], f"{len(told)} evaluations")
    for evaluation in told:
        metrics = evaluation["metrics"]
        expect(metrics.keys() >= NAMES, f"{NAMES - metrics.keys()} are missing")
        expect(1 <= metrics["completions/mean_length"] <= 12, f"{metrics}")
    expect(numbers_of(told[0]) != numbers_of(told[1]), "the policy did not change")
    plain = make_spec(options, scratch, "plain", eval_strategy="no", eval_on_start=False)
    del plain["data"]["eval"]
    compare(steps_of(events), steps_of(train(options, plain)))
    return f"{len(told)} evaluations"


def is_of_the_weights_alone(options, scratch):
    """Where they do not change, neither does what is evaluated; nor by the number of ranks."""
    still = {"learning_rate": 0, "max_steps": 4}
    one = evaluations_of(train(options, make_spec(options, scratch, "one", **still)))
    expect(numbers_of(one[0]) == numbers_of(one[1]), "it evaluated other completions")
    for name, fields in (
        ("two", {}),
        ("layerwise", {"generation.weights": "layerwise"}),
        ("awake", {"generation.enable_sleep_mode": False}),
    ):
        spec = make_spec(options, scratch, name, world=2, fields=fields, **still)
        (first, *_) = evaluations_of(train(options, spec))
        agree(numbers_of(first), numbers_of(one[0]), 1e-5)
    return f"reward {one[0]['metrics']['reward']:.3f}"


def losses_are_of_microbatches(options, scratch):
    """What is made at once are these: the mean over their tokens is that of the generation's."""
    losses = {}
    for loss_type in ("dapo", "bnpo", "grpo"):
        fields = {"method.grpo.loss_type": loss_type}
        spec = make_spec(options, scratch, loss_type, fields=fields, max_steps=1)
        (first, *_) = evaluations_of(train(options, spec))
        losses[loss_type] = first["loss"]
    expect(abs(losses["bnpo"] / losses["dapo"] - 1) < 1e-9, f"{losses}")
    expect(abs(losses["grpo"] / losses["dapo"] - 1) > 1e-3, f"{losses}")
    return f"{losses}"


def judges_as_training_does(options, scratch):
    """Of the same prompts the likeliest completions are worth the same, held out or not."""
    record = scratch / "record"
    spec = make_spec(
        options,
        scratch,
        "out",
        fields={
            "generation.record_to": str(record),
            "method.grpo.temperature": 1e-4,
            "method.grpo.num_iterations": 1,
        },
        learning_rate=0,
        max_steps=6,
    )
    spec["data"]["eval"] = [spec["data"]["train"]]
    (first, *_) = evaluations_of(train(options, spec))
    lines = live_test.recorded(record)
    expect(len({line["group"] for line in lines}) == live_test.PROMPTS, "not all prompts came")
    worth = [sum(reward or 0 for reward in line["rewards"].values()) for line in lines]
    got, want = first["metrics"]["reward"], sum(worth) / len(worth)
    expect(abs(got - want) < 1e-6, f"the reward is {got}, in training {want}")
    return f"{got:.4f}"


def chooses_the_best(options, scratch):
    spec = make_spec(
        options,
        scratch,
        "out",
        learning_rate=5e-3,
        eval_steps=2,
        eval_on_start=False,
        save_strategy="best",
        metric_for_best_model="eval_reward",
        load_best_model_at_end=True,
    )
    events = train(options, spec)
    rewards = {each["step"]: each["metrics"]["reward"] for each in evaluations_of(events)}
    expect(sorted(rewards) == [2, 4, 6, 8], f"evaluations {rewards}")
    best = max(sorted(rewards), key=rewards.get)
    chosen = events[-1]["finished"].get("bestStep")
    expect(chosen == best, f"step {chosen} is the best of {rewards}")
    return f"step {best} of {rewards}"


def other_methods(options, scratch):
    for method, names in (
        ("rloo", {"reward", "rewards/late/mean", "completions/mean_length"}),
        ("online_dpo", {"objective/scores", "rewards/accuracies", "val/contain_eos_token"}),
        ("ppo", {"reward", "rewards/late/mean", "objective/scores", "loss/value_avg"}),
    ):
        spec = make_spec(options, scratch, method, method, 2, max_steps=4)
        (first, *_) = evaluations_of(train(options, spec))
        expect(first["metrics"].keys() >= names, f"{method}: {first['metrics'].keys()}")
    return "rloo, online_dpo, ppo"


def values_count(options, scratch):
    """With PPO a loss is the policy's and vf_coef times the value model's, as in training."""
    still = {"learning_rate": 0, "max_steps": 1}
    told = {}
    for coefficient in (0, 0.5):
        fields = {"method.ppo.vf_coef": coefficient}
        spec = make_spec(options, scratch, f"out-{coefficient}", "ppo", fields=fields, **still)
        (told[coefficient], *_) = evaluations_of(train(options, spec))
    of_policy, whole = told[0], told[0.5]
    values = whole["metrics"]["loss/value_avg"]
    expect(values > 1e-3, f"the value model expects what comes, within {values}")
    # All prompts are one batch.
    got = (whole["loss"] - of_policy["loss"]) / 0.5
    expect(abs(got / values - 1) < 1e-6, f"values count {got}, their loss is {values}")
    expect(abs(whole["metrics"]["val/ratio"] - 1) < 1e-5, f"{whole['metrics']}")
    ranks = make_spec(
        options, scratch, "two", "ppo", 2, fields={"method.ppo.vf_coef": 0.5}, **still
    )
    (two, *_) = evaluations_of(train(options, ranks))
    agree(numbers_of(two), numbers_of(whole), 1e-5)
    return f"a loss of {whole['loss']:.4f}, of values {values:.4f}"


def goes_with_generations_made_ahead(options, scratch):
    fields = {"generation.async": True}
    events = train(options, make_spec(options, scratch, "out", fields=fields))
    plain = make_spec(
        options, scratch, "plain", fields=fields, eval_strategy="no", eval_on_start=False
    )
    del plain["data"]["eval"]
    compare(steps_of(events), steps_of(train(options, plain)))
    expect(len(evaluations_of(events)) == 3, "an evaluation is missing")
    return "as without evaluations"


def takes_what_was_rehearsed(options, scratch):
    """Of more prompts than the cache holds a bound, as some may be run again."""
    live_test.write_prompts(scratch / "prompts.jsonl", longer=False)
    worst = 0
    cases = ((2, {}, ()), (2, {"generation.enable_sleep_mode": False}, ()), (8, {}, ("generate",)))
    for number, (prompts, fields, bounds) in enumerate(cases):
        record = json.dumps({"prompt": "a long held-out prompt " * 4}) + "\n"
        (scratch / "held_out.jsonl").write_text(record * prompts)
        spec = make_spec(options, scratch, f"out-{number}", world=2, fields=fields)
        del spec["generation"]["stop_strings"]  # they would end early
        names = ("generate", "eval", "forward")
        worst = max(worst, live_test.compare_phases(options, spec, scratch, names, bounds))
    return f"within {worst:.1e}"


def main():
    trials.run_each(
        __doc__,
        changes_nothing,
        is_of_the_weights_alone,
        losses_are_of_microbatches,
        judges_as_training_does,
        chooses_the_best,
        other_methods,
        values_count,
        goes_with_generations_made_ahead,
        takes_what_was_rehearsed,
    )


if __name__ == "__main__":
    main()
