#!/usr/bin/env python3
"""Runs jobs that make their completions themselves.

live_test.py --trainer PATH --assets DIR
"""

import json
import shutil

import ranks
import trials
from trials import expect, steps_of, train

ROWS = 16  # of a generation: two microbatches of eight
PROMPTS = 12  # three generations an epoch, each gone through twice: twelve steps
STEPS = 14
REWARDS = [
    {"name": "short", "length": {"max_tokens": 12, "soft_punish_cache": 8}},
    {"name": "vowel", "regex": {"pattern": "[aeiou]"}},
    {"name": "answer", "exact_answer": {"pattern": "(.)"}},
]
METHODS = {
    "grpo": {
        "num_generations": 4,
        "max_completion_length": 12,
        "steps_per_generation": 2,
        "num_iterations": 2,
        "beta": 0.1,
    },
    "rloo": {
        "num_generations": 4,
        "max_completion_length": 12,
        "steps_per_generation": 2,
        "num_iterations": 2,
    },
    "online_dpo": {"max_new_tokens": 12},
    "ppo": {"response_length": 12, "num_ppo_epochs": 2, "num_mini_batches": 2},
}


def write_prompts(path, longer=True):
    """Some without an answer; of different lengths where `longer`."""
    with path.open("w") as file:
        for i in range(PROMPTS):
            record = {"prompt": f"tile {i:02d}" + " brick" * (i % 5 if longer else 0)}
            if i % 3:
                record["answer"] = "e"
            file.write(json.dumps(record) + "\n")


def make_spec(options, scratch, name, method="grpo", world=1, *, fields=None, **training):
    prompts = scratch / "prompts.jsonl"
    if not prompts.exists():
        write_prompts(prompts)
    training = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 8 // world,
        "save_strategy": "no",
    } | training
    own = {f"method.{method}.{name}": value for name, value in METHODS[method].items()}
    if method == "ppo":
        own["method.ppo.value_model_path"] = str(options.assets / "models/llama_reward")
    spec = trials.make_spec(
        options,
        scratch / name,
        world,
        method=method,
        model="llama",
        fields=own | (fields or {}),
        **training,
    )
    spec["data"] = {"train": str(prompts)}
    spec["reward_funcs"] = REWARDS
    return spec


def recorded(directory):
    """Lines of all generations, in their order."""
    return [
        json.loads(line)
        for path in sorted(directory.glob("generation-*.jsonl"))
        for line in path.read_bytes().splitlines()  # texts may hold other ends of lines
    ]


def numbers_of(step):
    """All that a step event tells but for times."""
    told = {name: step.get(name) for name in ("loss", "gradNorm", "numTokens", "epoch")}
    return told | {name: float(value) for name, value in step["metrics"].items()}


def compare(got, want):
    expect(got.keys() <= want.keys() and got, f"steps {sorted(got)}, not of {sorted(want)}")
    for step in got:
        mine, theirs = numbers_of(got[step]), numbers_of(want[step])
        different = [name for name in mine | theirs if mine.get(name) != theirs.get(name)]
        expect(
            not different,
            f"step {step}: {[(name, mine.get(name), theirs.get(name)) for name in different]}",
        )


def completions_are_as_asked(options, scratch):
    record = scratch / "record"
    spec = make_spec(options, scratch, "out", fields={"generation.record_to": str(record)})
    steps = steps_of(train(options, spec))
    expect(sorted(steps) == list(range(1, STEPS + 1)), f"steps {sorted(steps)}")
    lines = recorded(record)
    expect(len(lines) == 4 * ROWS, f"{len(lines)} completions are recorded")
    epoch = lines[: 3 * ROWS]
    groups = {}
    for line in epoch:
        groups.setdefault(line["group"], []).append(line)
        length = len(line["completion_ids"])
        expect(1 <= length <= 12 and len(line["logprobs"]) == length, f"{line}")
        expect(line["truncated"] == (length == 12 and line["completion_ids"][-1] != 769), f"{line}")
    expect([len(group) for group in groups.values()] == [4] * PROMPTS, "groups are not of four")
    prompts = [tuple(group[0]["prompt_ids"]) for group in groups.values()]
    expect(len(set(prompts)) == PROMPTS, "a prompt came twice in an epoch")
    different = {tuple(line["completion_ids"]) for line in epoch}
    expect(len(different) > 2.9 * ROWS, f"of {len(epoch)} only {len(different)} differ")
    for line in epoch:
        rewards = line["rewards"]
        expect(list(rewards) == ["short", "vowel", "answer"], f"rewards {rewards}")
        has_vowel = any(letter in line["completion"] for letter in "aeiou")
        expect(rewards["vowel"] == has_vowel, f"{rewards} of {line['completion']!r}")
        has_answer = int(line["prompt"][5:7]) % 3 != 0
        expect((rewards["answer"] is not None) == has_answer, f"{rewards} of {line['prompt']!r}")
    new = [step for step in steps if "completions/mean_length" in steps[step]["metrics"]]
    expect(new == [1, 5, 9, 13], f"generations were made before steps {new}")
    return f"{len(lines)} completions"


def ranks_make_the_same(options, scratch):
    """The first completions are of the same weights; later ones may part by rounding."""
    first = {}
    for name, world, fields in (
        ("one", 1, {}),
        ("two", 2, {}),
        ("layerwise", 2, {"generation.weights": "layerwise"}),
        ("shared", 2, {"parallelism.cp_size": 2}),
        ("awake", 2, {"generation.enable_sleep_mode": False}),
        (
            "crowded",
            1,
            {"generation.max_num_seqs": 3, "generation.max_num_batched_tokens": 7},
        ),
    ):
        record = scratch / f"record-{name}"
        rows = 8 if "parallelism.cp_size" in fields else 8 // world
        spec = make_spec(
            options,
            scratch,
            name,
            world=world,
            per_device_train_batch_size=rows,
            fields={"generation.record_to": str(record)} | fields,
        )
        steps = steps_of(train(options, spec))
        expect(len(steps) == STEPS, f"{name} took {len(steps)} steps")
        lines = recorded(record)
        first[name] = [(line["group"], line["completion_ids"]) for line in lines[:ROWS]]
        if name == "two":
            whole, told = lines, steps
        if name in ("layerwise", "awake"):
            expect(lines == whole, f"{name} made other completions")
            compare(steps, told)
    for name, lines in first.items():
        expect(lines == first["one"], f"{name} made other completions")
    return f"{', '.join(first)} agree"


def replays(method, options, scratch):
    """A run from what another recorded has its losses, to the bit."""
    record = scratch / "record"
    live = make_spec(options, scratch, "live", method, 2)
    live["generation"] = {"record_to": str(record)}
    live["training"]["max_steps"] = 12
    again = make_spec(options, scratch, "again", method, 2)
    again["training"]["max_steps"] = 12
    del again["reward_funcs"]
    again["data"] = {"rollouts": str(record)}
    if method == "online_dpo":
        live["reward_funcs"] = REWARDS[:2]  # a pair needs both rewards
        for spec in (live, again):  # of the last prompts of an epoch there are as many
            spec["training"]["per_device_train_batch_size"] = 2
    want, got = (steps_of(train(options, spec)) for spec in (live, again))
    for step in want.values():
        step["epoch"] = None
    for step in got.values():
        step["epoch"] = None
    for step in want.values():
        # Of a replay nobody knows.
        del step["metrics"]["sampling/staleness"]
    compare(got, want)
    return f"{len(got)} steps"


def scores_nothing(options, scratch):
    """With PPO a completion that nothing judges has a score of 0."""
    record = scratch / "record"
    spec = make_spec(
        options, scratch, "out", "ppo", 2, fields={"generation.record_to": str(record)}
    )
    spec["reward_funcs"] = [REWARDS[2]]
    steps = steps_of(train(options, spec))
    expect(max(steps) == STEPS, f"it ended after step {max(steps)}")
    lines = recorded(record)[:ROWS]
    unjudged = [line for line in lines if line["rewards"]["answer"] is None]
    expect(unjudged, "all were judged")
    mean = sum(line["rewards"]["answer"] or 0 for line in lines) / len(lines)
    told = steps[1]["metrics"]["objective/scores"]
    expect(abs(told - mean) < 1e-6, f"the mean score is {mean}, and {told} was told")
    return f"{len(unjudged)} of {len(lines)} completions"


def samples_at_its_temperature(method, options, scratch):
    """Near none a prompt's completions are the likeliest one, each time; at 1 they differ."""
    kinds = {}
    for temperature in (1e-4, 1):
        record = scratch / f"record-{temperature}"
        fields = {
            "generation.record_to": str(record),
            f"method.{method}.temperature": temperature,
        }
        spec = make_spec(
            options, scratch, f"out-{temperature}", method, fields=fields, learning_rate=0
        )
        train(options, spec)
        made = {}
        for line in recorded(record):
            made.setdefault(line["prompt"], []).append(tuple(line["completion_ids"]))
        expect(any(len(each) > 1 for each in made.values()), "no prompt came twice")
        kinds[temperature] = max(len(set(each)) for each in made.values())
    expect(kinds[1e-4] == 1 < kinds[1], f"so many different ones of a prompt: {kinds}")
    return f"{kinds[1]} different ones at 1"


def goes_on(method, options, scratch):
    record = scratch / "record"
    spec = make_spec(options, scratch, "whole", method, 2, save_strategy="steps", save_steps=1)
    spec["generation"] = {"record_to": str(record)}
    steps = steps_of(train(options, spec))
    files = trials.files_of(record)
    for saved in (1, 2, 3, 4, 7, 13):
        output = f"resumed-{saved}"
        resumed = make_spec(
            options,
            scratch,
            output,
            method,
            2,
            resume_from_checkpoint=str(scratch / "whole" / f"checkpoint-{saved}"),
        )
        copy = scratch / f"record-{saved}"
        shutil.copytree(record, copy)
        resumed["generation"] = {"record_to": str(copy)}
        got = steps_of(train(options, resumed))
        expect(min(got) == saved + 1 and max(got) == STEPS, f"steps {min(got)} to {max(got)}")
        compare(got, steps)
        expect(trials.files_of(copy) == files, f"after step {saved} other files were recorded")
    return "to the bit"


def sleeps(options, scratch):
    """While the policy is trained there is neither cache nor gathered weights."""
    spec = make_spec(options, scratch, "out", world=2)
    events = train(options, spec)
    told = [event["generation"] for event in events if "generation" in event]
    wakes = [event.get("isWake", False) for event in told]
    expect(wakes == [True, False] * 4, f"the engine woke and slept: {wakes}")
    for event in told:
        expect(int(event["kvCacheBytes"]) > 0 and int(event["weightBytes"]) > 0, f"{event}")
        expect(event["seconds"] >= 0, f"{event}")
    steps = [event["step"] for event in told]
    expect(steps == [1, 1, 5, 5, 9, 9, 13, 13], f"at steps {steps}")
    time = steps_of(events)[5]["time"]
    expect(time["generationSeconds"] > 0, f"{time}")
    expect(steps_of(events)[6]["time"].get("generationSeconds", 0) == 0, "step 6 generated")
    memory = trials.last_memory(events)
    cache = next(owner for owner in memory["owners"] if owner["owner"] == "kv_cache")
    expect(int(cache.get("currentBytes", 0)) == 0, f"{cache}")
    phases = {phase["phase"]: int(phase["peakBytes"]) for phase in memory["phases"]}
    expect({"generate", "forward", "backward", "optimizer"} <= phases.keys(), f"{phases}")
    return f"{len(told)} transitions"


def compare_phases(
    options, spec, scratch, names=("generate", "forward", "backward", "optimizer"), bounds=()
):
    """The largest relative error of a phase's rehearsed peak; of `bounds` it may be too large."""
    world = spec["parallelism"]["num_processes"]
    rehearsed = {
        phase["phase"]: int(phase["peakBytes"])
        for phase in trials.rehearse(options, spec, scratch)["phases"]
    }
    ranks.run(options.trainer, spec, world, scratch)
    of_ranks = [
        trials.last_memory(ranks.read_events(scratch / f"rank{rank}.out")) for rank in range(world)
    ]
    worst = 0
    for name in names:
        measured = max(
            int(phase["peakBytes"])
            for memory in of_ranks
            for phase in memory["phases"]
            if phase["phase"] == name
        )
        error = (rehearsed[name] - measured) / measured
        most = 0.1 if name in bounds else 0.005
        expect(-0.005 < error < most, f"{name}: rehearsed {rehearsed[name]}, measured {measured}")
        worst = worst if name in bounds else max(worst, abs(error))
    return worst


def takes_what_was_rehearsed(options, scratch):
    """In each phase, of prompts of one length and completions that hardly ever end early."""
    write_prompts(scratch / "prompts.jsonl", longer=False)
    worst = 0
    for number, (world, fields) in enumerate(
        [
            (1, {}),
            (2, {}),
            (2, {"generation.weights": "layerwise"}),
            (2, {"generation.enable_sleep_mode": False}),
        ]
    ):
        spec = make_spec(options, scratch, f"out-{number}", world=world, fields=fields)
        worst = max(worst, compare_phases(options, spec, scratch))
    return f"within {worst:.1e}"


def shares_what_was_rehearsed(options, scratch):
    """Blocks of layerwise that ranks of a host share, of a job that holds most while it generates:
    what each owner has of that, to the byte."""
    write_prompts(scratch / "prompts.jsonl", longer=False)
    sizes = {"max_completion_length": 200, "steps_per_generation": 16, "num_iterations": 1}
    spec = make_spec(
        options,
        scratch,
        "out",
        world=2,
        fields={f"method.grpo.{field}": value for field, value in sizes.items()}
        | {"generation.weights": "layerwise"},
        per_device_train_batch_size=1,
        max_steps=1,
    )
    rehearsed = trials.rehearse(options, spec, scratch)
    ranks.run(options.trainer, spec, 2, scratch)
    of_ranks = [trials.last_memory(ranks.read_events(scratch / f"rank{i}.out")) for i in range(2)]
    measured = max(of_ranks, key=lambda memory: int(memory["peakBytes"]))
    for report in (rehearsed, measured):
        [phase] = [phase for phase in report["phases"] if phase["phase"] == "generate"]
        expect(phase["peakBytes"] == report["peakBytes"], "the peak is in another phase")
    want, got = trials.held(rehearsed), trials.held(measured)
    for owner in ("communication", "parameters", "kv_cache"):
        expect(want[owner] == got[owner] > 0, f"{owner}: {want[owner]}, measured {got[owner]}")
    return f"{want['communication']} bytes of two blocks, of {want['peak']}"


def chooses_what_fits(options, scratch):
    """Weights that are gathered, and all of the cache, as far as resources.device_memory allows."""

    def run(name, fields):
        record = scratch / f"record-{name}"
        sizes = {"max_completion_length": 200, "steps_per_generation": 16, "num_iterations": 1}
        spec = make_spec(
            options,
            scratch,
            name,
            world=2,
            fields={f"method.grpo.{field}": value for field, value in sizes.items()}
            | {
                "generation.record_to": str(record),
                # Few are run again at once where pages run out.
                "generation.max_num_batched_tokens": 64,
                "generation.max_num_seqs": 64,
            }
            | fields,
            per_device_train_batch_size=1,
            max_steps=1,
        )
        peaks = {
            phase["phase"]: int(phase["peakBytes"])
            for phase in trials.rehearse(options, spec, scratch)["phases"]
        }
        events = train(options, spec)
        wake = next(event["generation"] for event in events if "generation" in event)
        is_gathered = int(wake["weightBytes"]) > 0
        tokens = [line["completion_ids"] for line in recorded(record)]
        return peaks["generate"], int(wake["kvCacheBytes"]), is_gathered, tokens

    write_prompts(scratch / "prompts.jsonl", longer=False)
    peak, cache, is_gathered, want = run("unbound", {})
    expect(is_gathered, "without a bound it did not gather")
    told = []
    for share, gathers in ((0, True), (0.2, True), (0.6, False)):
        limit = peak - int(share * cache)
        # What allocates more is refused.
        rehearsed, taken, is_gathered, tokens = run(
            f"bound-{share}", {"resources.device_memory": str(limit)}
        )
        expect(is_gathered == gathers, f"{limit} of {peak} bytes: gathered is {is_gathered}")
        expect(rehearsed <= limit, f"rehearsed are {rehearsed} of {limit} bytes")
        expect((taken < cache) == (share == 0.2) or not gathers, f"a cache of {taken} bytes")
        expect(tokens == want, "it made other completions")
        told.append(taken)
    return f"caches of {told} bytes"


def refuses_what_cannot_be(options, scratch):
    cases = {
        "generation.kv_cache_memory": ({"generation.kv_cache_memory": "1MiB"}, "one sequence of"),
        "method.grpo.max_completion_length": (
            {"method.grpo.max_completion_length": 1020},
            "max_position_embeddings are 1024",
        ),
        "generation.max_num_seqs": (
            {"generation.max_num_seqs": 9, "generation.max_num_batched_tokens": 8},
            "a pass has a token of each",
        ),
    }
    cases["generation.kv_cache_memory"][0]["method.grpo.max_completion_length"] = 1000
    for field, (fields, sentence) in cases.items():
        spec = make_spec(options, scratch, "out", fields=fields)
        spec["model"]["path"] = str(options.assets / "models" / "qwen3")
        _, lines = trials.run_alone(options, spec, scratch, "--check")
        failures = lines[-1].get("violations", [])
        expect(
            any(f.get("field") == field and sentence in f["message"] for f in failures),
            f"{field}: {lines[-1]}",
        )
    return f"{len(cases)} mistakes"


def same(name, check, *arguments):
    def named(options, scratch):
        return check(*arguments, options, scratch)

    named.__name__ = name
    return named


def main():
    trials.run_each(
        __doc__,
        completions_are_as_asked,
        ranks_make_the_same,
        *(same(f"{method} replays", replays, method) for method in METHODS),
        *(same(f"{method} goes on", goes_on, method) for method in ("grpo", "rloo", "ppo")),
        *(
            same(f"{method} samples at its temperature", samples_at_its_temperature, method)
            for method in METHODS
        ),
        scores_nothing,
        sleeps,
        takes_what_was_rehearsed,
        shares_what_was_rehearsed,
        chooses_what_fits,
        refuses_what_cannot_be,
    )


if __name__ == "__main__":
    main()
