#!/usr/bin/env python3
"""What a plan makes of a job's files: plan_test.py --trainer PATH --assets DIR.

What is wrong with them is refused as a check refuses it; what is not there may be on the machine
that the plan is made for.
"""

import pathlib
import shutil

import live_test
import trials
from trials import expect

SECONDS = 0.001  # for alternatives, after the job as written
# Recordings that a method trains on, with what fits them.
RECORDED = {
    "grpo": ("rollouts_sampled", 6, {"num_generations": 4, "num_iterations": 2}),
    "rloo": ("rollouts", 6, {"num_generations": 4, "reward_weights": [1, 0.5]}),
    "online_dpo": ("rollouts_pairs", 8, {}),
    "ppo": ("rollouts_judged", 8, {"num_mini_batches": 2}),
}


def plan(options, spec, scratch):
    request = {"spec": spec, "max_seconds": SECONDS}
    _, lines = trials.ask(options, request, scratch, "--plan")
    return lines[-1]


def replay(options, scratch, method, world=2):
    train, rows, own = RECORDED[method]
    fields = {f"method.{method}.{name}": value for name, value in own.items()}
    if method == "ppo":
        fields["method.ppo.value_model_path"] = str(options.assets / "models/llama_reward")
    return trials.make_spec(
        options,
        scratch / "out",
        world,
        method=method,
        model="llama",
        train=train,
        fields=fields,
        per_device_train_batch_size=rows,
    )


def recordings_may_be_elsewhere(options, scratch):
    """As many completions then as are made at once, with prompts as long as the model reads."""
    peaks = {}
    for method in RECORDED:
        spec = replay(options, scratch, method)
        here = plan(options, spec, scratch)["asWritten"]
        expect(not here.get("assumesFullRows"), f"{method}: the recording was not read")
        spec["data"]["rollouts"] = str(scratch / "elsewhere")
        made = plan(options, spec, scratch)
        expect("asWritten" in made, f"{method}: {made}")
        assumed = made["asWritten"]
        expect(assumed.get("assumesFullRows"), f"{method}: nothing is said of what was assumed")
        expect(int(assumed["peakBytes"]) > int(here["peakBytes"]), f"{method}: less than here")
        peaks[method] = int(assumed["peakBytes"])
    return str(peaks)


def files_may_be_elsewhere(options, scratch):
    """Of the models config.json is enough."""
    spec = live_test.make_spec(options, scratch, "out", "ppo")
    for field in ("path", "value_model_path"):
        section = spec["model"] if field == "path" else spec["method"]["ppo"]
        directory = scratch / field
        directory.mkdir()
        shutil.copy(pathlib.Path(section[field]) / "config.json", directory)
        section[field] = str(directory)
    spec["data"]["train"] = str(scratch / "elsewhere.jsonl")
    expect("asWritten" in plan(options, spec, scratch), "refused")
    expect(violations(options, spec, scratch), "a run has to have them")
    return "planned"


def violations(options, spec, scratch):
    _, lines = trials.run_alone(options, spec, scratch, "--check")
    return [{"field": v["field"], "message": v["message"]} for v in lines[-1].get("violations", [])]


def expect_both_refuse(options, spec, scratch, field, sentence):
    told = violations(options, spec, scratch)
    expect(told and told[0]["field"] == field and sentence in told[0]["message"], f"{told}")
    failure = plan(options, spec, scratch).get("failure", {})
    expect({name: failure.get(name) for name in told[0]} == told[0], f"{failure} for {told[0]}")
    expect(failure.get("kind") == "USER", f"{failure}")


def what_is_wrong_is_refused(options, scratch):
    models = options.assets / "models"
    directory = scratch / "reward"
    shutil.copytree(models / "llama_reward", directory)
    shutil.copytree(options.assets / "tokenizer", directory, dirs_exist_ok=True)
    malformed = scratch / "malformed.jsonl"
    malformed.write_text('{"prompt": "a"}\n{"prompt"\n')
    empty = scratch / "empty"
    empty.mkdir()
    other = scratch / "other"
    shutil.copytree(models / "qwen3", other)
    shutil.copy(models / "llama" / "config.json", other)
    cases = [
        ("reward_funcs[0].model.path", "no tensor score.weight", {"reward": models / "llama"}),
        ("reward_funcs[0].regex.pattern", "", {"pattern": "("}),
        ("data.train", "malformed.jsonl", {"train": malformed}),
        ("data.train", "there are no .jsonl", {"train": empty}),
        ("data.eval", "malformed.jsonl", {"eval": malformed}),
        ("model.path", "tensor", {"model": other}),
    ]
    for field, sentence, changes in cases:
        spec = live_test.make_spec(options, scratch, "out")
        judge = {"model": {"path": str(changes.get("reward", directory))}}
        if "pattern" in changes:
            judge = {"regex": {"pattern": changes["pattern"]}}
        spec["reward_funcs"] = [{"name": "judge"} | judge]
        spec["data"] |= {name: str(changes[name]) for name in ("train", "eval") if name in changes}
        spec["model"]["path"] = str(changes.get("model", spec["model"]["path"]))
        expect_both_refuse(options, spec, scratch, field, sentence)
    spec = replay(options, scratch, "grpo")
    spec["data"]["rollouts"] = str(empty)
    expect_both_refuse(options, spec, scratch, "data.rollouts", "there are no .jsonl")
    return f"{len(cases) + 1} mistakes"


trials.run_each(
    __doc__, recordings_may_be_elsewhere, files_may_be_elsewhere, what_is_wrong_is_refused
)
