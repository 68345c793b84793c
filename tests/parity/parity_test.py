#!/usr/bin/env python3
"""Trains a parity case with tessera-trainer and compares each step with what TRL logged.

    parity_test.py --trainer PATH --world N --assets DIR [CASE ...]
    parity_test.py --trainer PATH --world N --kit DIR [CASE ...]
    (both) [--device cpu|cuda]

--assets is a directory that make_assets.py wrote, --kit one that holds other recorded runs (see
kit.py). Without CASE: all of them. Exits with 1 if a case differs.
"""

import argparse
import json
import math
import pathlib
import shutil
import sys
import tempfile

import kit
import ranks
from adapters import write_adapter
from cases import CASES, check_assets, expectation
from models import write_safetensors
from weights import read_safetensors, relative_error, weight_norms

# Relative, unless the value is 0. num_tokens is compared exactly. Accuracy is a count over label
# tokens, of which one or two may change sides where two tokens are nearly as likely.
TOLERANCE = {
    "loss": 1e-5,
    "grad_norm": 1e-5,
    "learning_rate": 1e-12,
    "epoch": 1e-12,
}
METRIC_TOLERANCE = 1e-5  # of any other
# TRL adds up log-probabilities of documents, and logits, in float32. What is left of sums that
# nearly cancel carries this share of them.
ROUNDING = 2e-7
# Advantages, whose sum over a group is 0, times log-probabilities of tokens, or times ratios: of
# RLOO those of whole completions.
ONLINE_TERMS = {"grpo": 15.0, "rloo": 25.0, "online_dpo": 5.0}
# Of PPO advantages likewise; sums of differences of log-probabilities over completions; and squares
# of such differences, of tokens.
PPO_TERMS = {
    "loss": lambda event: 1.0,
    "loss/policy_avg": lambda event: 1.0,
    "objective/kl": lambda event: event["objective/entropy"],
    "objective/non_score_reward": lambda event: event["objective/entropy"],
    "policy/approxkl_avg": lambda event: 10 * math.sqrt(event["policy/approxkl_avg"]),
}
EXACT = ["step", "num_tokens", "eval_num_tokens"]
ACCURACIES = ["mean_token_accuracy", "eval_mean_token_accuracy"]
WEIGHT_TOLERANCE = 1e-5
# Their gradients nearly cancel, since a softmax does not see what all scores share; AdamW makes
# whole steps of what is left.
KEY_BIAS_TOLERANCE = 1e-4
ACCURACY_TOLERANCE = 2e-3
MOST_PROBLEMS = 12  # printed of a case
# Of the fields in an expectation, by kind of event.
JSON_NAMES = {
    "step": {
        "step": "step",
        "loss": "loss",
        "grad_norm": "gradNorm",
        "learning_rate": "learningRate",
        "num_tokens": "numTokens",
        "epoch": "epoch",
    },
    "eval": {
        "step": "step",
        "eval_loss": "loss",
        "eval_num_tokens": "numTokens",
        "epoch": "epoch",
    },
}


def own_job(name, assets, world):
    """(JobSpec, expectation) of a case of ours."""
    case = CASES[name]
    expected = expectation(name)
    check_assets(expected, assets)
    training = case.training_options()
    if case.batch % world:
        training["accelerator_config"] = {"split_batches": True}
    splits = training.get("accelerator_config", {}).get("split_batches")
    rows = case.batch if splits else case.batch // world
    training["per_device_train_batch_size"] = rows
    if case.eval:
        training["per_device_eval_batch_size"] = case.batch // world  # never split
    spec = {
        "method": {case.method: method_options(case, assets)},
        "model": {
            "path": str(assets / "models" / case.model),
            "tokenizer": str(assets / "tokenizer"),
        },
        "data": {
            kind: str(assets / "data" / f"{name}.jsonl")
            for kind, name in {case.data_field(): case.data, "eval": case.eval}.items()
            if name
        },
        "training": training,
        "memory": case.memory_options(),
    }
    if case.peft:
        spec["peft"] = case.peft
        expected["adapter"] = None  # as adapters.py makes it
    return spec, expected


def method_options(case, assets):
    options = case.method_options()
    if case.is_chat():
        options = options | {"chat_template_path": str(assets / "chat.jinja")}
    if case.reference:
        options = options | {"ref_model": str(assets / "models" / case.reference)}
    if case.value:
        options = options | {"value_model_path": str(assets / "models" / case.value)}
    if case.teacher:
        teacher = str(assets / "models" / case.teacher)
        options = options | {"teacher_model_name_or_path": teacher}
    return options


def complete(spec, world, output, device="cpu"):
    """Adds what all jobs share."""
    spec["name"] = "parity"
    spec["data"]["cache_dir"] = str(output.parent / "cache")
    spec["training"] = {"save_strategy": "no", "logging_steps": 1} | spec["training"]
    spec["training"]["output_dir"] = str(output)
    spec["parallelism"] = {"num_processes": world}
    spec["resources"] = {"device": device, "cpu_threads": 1}
    return spec


def metric_error(actual, expected, terms):
    """Relative. `terms`: the size of what the numbers are the difference of, or the mean."""
    if not math.isfinite(actual):
        return math.inf
    error = max(0.0, abs(actual - expected) - ROUNDING * terms)
    return error / abs(expected) if expected else error


def size_of_terms(field, event, method, beta):
    """Of what nearly cancels in a metric of an expectation; 0 where nothing does."""
    prefix, name = ("eval_", field[5:]) if field.startswith("eval_") else ("", field)
    if name.startswith("logits/"):
        return 1.0  # logits are of both signs
    largest = max(abs(event.get(f"{prefix}logps/{kind}", 0)) for kind in ("chosen", "rejected"))
    if method == "ppo" and name in PPO_TERMS:
        return PPO_TERMS[name](event)
    if name in ("kl", "loss"):
        return ONLINE_TERMS.get(method, largest if name == "kl" else 0.0)
    if name == "objective/kl":
        return largest
    of_rewards = name.startswith("rewards/") or name == "objective/non_score_reward"
    return beta * largest if of_rewards else 0.0


def share_of_rewards(field, event):
    """Of a metric in the largest of the rewards that it is made of; 1 where there are none."""
    prefix, name = ("eval_", field[5:]) if field.startswith("eval_") else ("", field)
    rewards = {
        "rewards/margins": ("rewards/chosen", "rewards/rejected"),
        "margin": ("min_reward", "max_reward"),
        "mean_reward": ("min_reward", "max_reward"),
        "min_reward": ("max_reward",),
        "max_reward": ("min_reward",),
    }.get(name, ())
    largest = max([abs(event[field]), *(abs(event.get(prefix + of, 0)) for of in rewards)])
    return abs(event[field]) / largest if event[field] else 1.0


def compare_events(kind, events, expected, rewards, worst, tolerance=0.0):
    """Complaints. Enters the largest relative error of each field into `worst`.

    `rewards`: the method, and what its rewards are multiplied with. `tolerance`: at least.
    """
    actual = [event[kind] for event in events if kind in event]
    problems = []
    if len(actual) != len(expected):
        problems.append(f"{len(actual)} {kind} events, expected {len(expected)}")
    for event, want in zip(actual, expected, strict=False):
        # ProtoJSON leaves out zeros and writes 64-bit integers as strings.
        got = {field: float(event.get(name, 0)) for field, name in JSON_NAMES[kind].items()}
        prefix = "eval_" if kind == "eval" else ""
        measured = event.get("metrics", {})
        got |= {prefix + name: float(value) for name, value in measured.items()}
        lacking = sorted(want.keys() - got.keys())
        if lacking:
            problems.append(f"step {want['step']}: there is no {', '.join(lacking)}")
        for field in want.keys() & got.keys():
            if field in EXACT:
                same = got[field] == want[field]
            elif field in ACCURACIES:
                same = abs(got[field] - want[field]) <= ACCURACY_TOLERANCE
            else:
                error = metric_error(got[field], want[field], size_of_terms(field, want, *rewards))
                error *= share_of_rewards(field, want)
                worst[field] = max(worst.get(field, 0), error)
                same = error <= max(TOLERANCE.get(field, METRIC_TOLERANCE), tolerance)
            if not same:
                problems.append(
                    f"step {want['step']}: {field} is {got[field]!r}, expected {want[field]!r}"
                )
    return problems


def compare_weights(directory, expected):
    actual = weight_norms(directory)
    problems = [
        f"the final weights {what} {name}"
        for what, names in (
            ("lack", expected.keys() - actual.keys()),
            ("should not have", actual.keys() - expected.keys()),
        )
        for name in sorted(names)
    ]
    for name in sorted(expected.keys() & actual.keys()):
        error = relative_error(actual[name], expected[name])
        if error > (KEY_BIAS_TOLERANCE if name.endswith("k_proj.bias") else WEIGHT_TOLERANCE):
            problems.append(
                f"the norm of the final {name} is {actual[name]!r}, expected {expected[name]!r}"
            )
    return problems


def check(name, spec, expected, options):
    return report(name, options.world, *differences(spec, expected, options))


def differences(spec, expected, options):
    """Complaints, and the largest relative error of each field."""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        complete(spec, options.world, scratch / "output", options.device)
        if "adapter" in expected:
            model = pathlib.Path(spec["model"]["path"])
            write_adapter(scratch / "adapter", model, spec["peft"], expected["adapter"])
            spec["peft"] = spec["peft"] | {"adapter_path": str(scratch / "adapter")}
        if "model_rows" in expected:
            model = pathlib.Path(spec["model"]["path"])
            change_rows(model, scratch / "model", expected["model_rows"])
            spec["model"]["path"] = str(scratch / "model")
        if "rollouts" in expected:
            file = scratch / "rollouts.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in expected["rollouts"]))
            spec["data"] = {"rollouts": str(file), "cache_dir": spec["data"]["cache_dir"]}
        try:
            events = ranks.run(options.trainer, spec, options.world, scratch)
        except ranks.RunError as error:
            return [str(error)], {}
        worst = {}
        ((method, fields),) = spec["method"].items()
        beta = fields.get("beta", 0.1)
        rewards = method, beta[0] if isinstance(beta, list) else beta
        problems = compare_events(
            "step", events, expected["steps"], rewards, worst, expected.get("tolerance", 0.0)
        )
        problems += compare_events("eval", events, expected.get("evals", []), rewards, worst)
        final = pathlib.Path(events[-1]["finished"]["output"])
        for kind, directory in (("weight_norms", final), ("value_norms", final / "value_model")):
            if kind in expected:
                problems += compare_weights(directory, expected[kind])
    return problems, worst


def change_rows(model, directory, changes):
    """Copies a model, with other values in some rows of its matrices."""
    directory.mkdir()
    for file in model.iterdir():
        shutil.copyfile(file, directory / file.name)
    for file in directory.glob("*.safetensors"):
        tensors = dict(read_safetensors(file))
        for name, rows in changes.items():
            for row, values in rows.items():
                tensors[name][row] = values
        write_safetensors(file, {n: t.astype("float32") for n, t in tensors.items()}, False)


def report(name, world, problems, worst):
    errors = ", ".join(f"{field} {error:.1e}" for field, error in worst.items())
    verdict = "FAILED" if problems else "ok"
    print(f"{verdict}: {name}, world {world}: largest relative errors: {errors}", flush=True)
    for problem in problems[:MOST_PROBLEMS]:
        print(f"  {problem}", flush=True)
    if len(problems) > MOST_PROBLEMS:
        print(f"  and {len(problems) - MOST_PROBLEMS} more", flush=True)
    return not problems


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer", required=True, type=pathlib.Path)
    parser.add_argument("--world", required=True, type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--assets", type=pathlib.Path)
    source.add_argument("--kit", type=pathlib.Path)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    options = parser.parse_args()
    if not options.trainer.is_file():
        raise SystemExit(f"{options.trainer} does not exist")
    if options.kit:
        jobs = [
            (name, *kit.job(name, options.kit.resolve(), options.world))
            for name in options.cases or kit.CASES
        ]
    else:
        jobs = [
            (name, *own_job(name, options.assets.resolve(), options.world))
            for name in options.cases or CASES
        ]
    results = [check(*job, options) for job in jobs]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
