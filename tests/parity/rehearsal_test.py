#!/usr/bin/env python3
"""Rehearsed memory against measured memory, owner by owner.

    rehearsal_test.py --trainer PATH --assets DIR [--all] [CASE ...]

Each case is rehearsed, then run in processes. The peak of the rank that held most, and what each
owner had of it, must be what the rehearsal said, to the byte. Cases with a tolerance say why.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import ranks

# name: (model, data, world, changes to the spec by section). The slice is what ctest runs.
SLICE = {
    "llama": ("llama", "mixed", 1, {}),
    "qwen3_two_ranks": ("qwen3", "mixed", 2, {}),
    "no_checkpointing": ("llama", "mixed", 2, {"memory": {"gradient_checkpointing": False}}),
    "accumulation_of_packed_rows": (
        "qwen3",
        "short",
        2,
        {"training": {"gradient_accumulation_steps": 3}, "method": {"packing": True}},
    ),
    "evaluation": (
        "llama",
        "short",
        1,
        {
            "data": {"eval": ["mixed"]},
            "training": {"per_device_eval_batch_size": 16, "per_device_train_batch_size": 1},
            "memory": {"gradient_checkpointing": False},
        },
    ),
    "saves": (
        "llama_tied",
        "mixed",
        2,
        {"training": {"save_strategy": "steps", "save_steps": 1, "async_save": False}},
    ),
    "bfloat16": ("llama", "mixed", 2, {"model": {"dtype": "bfloat16"}}),
}
MORE = {
    "keeps_weights": ("llama", "mixed", 2, {"memory": {"reshard_after_forward": False}}),
    "padded": ("llama", "mixed", 2, {"method": {"pad_to_multiple_of": 64}}),
    "packed": ("qwen3", "mixed", 1, {"method": {"packing": True}}),
    "wrapped": (
        "qwen3",
        "mixed",
        2,
        {"method": {"packing": True, "packing_strategy": "wrapped"}},
    ),
    "whole_documents": ("llama", "mixed", 1, {"method": {"max_length": 0}}),
    "small_chunks": ("llama", "mixed", 1, {"memory": {"head_chunk_tokens": 16}}),
    "two_threads": ("llama", "mixed", 1, {"resources": {"cpu_threads": 2}}),
    "label_smoothing": ("llama", "mixed", 1, {"training": {"label_smoothing_factor": 0.1}}),
    "dft": ("llama", "mixed", 1, {"method": {"loss_type": "dft"}}),
    "neftune": ("llama", "mixed", 1, {"training": {"neftune_noise_alpha": 5}}),
    "dropout": ("llama", "mixed", 1, {"model": {"hidden_dropout": 0.1}}),
    "qwen2": ("qwen2", "mixed", 1, {}),
    "windows": ("mistral", "mixed", 2, {}),
    "bfloat16_no_checkpointing": (
        "qwen3",
        "mixed",
        1,
        {"model": {"dtype": "bfloat16"}, "memory": {"gradient_checkpointing": False}},
    ),
    "bfloat16_windows": ("mistral", "mixed", 1, {"model": {"dtype": "bfloat16"}}),
    "recomputes_all": (
        "llama",
        "mixed",
        2,
        {"memory": {"gradient_checkpointing_policy": "full"}},
    ),
    "every_second_block": (
        "qwen3",
        "mixed",
        1,
        {"memory": {"gradient_checkpointing_every": 2}},
    ),
    "offloads": ("llama", "mixed", 1, {"memory": {"activation_offloading": True}}),
    "offloads_all_that_is_saved": (
        "qwen3",
        "mixed",
        2,
        {"memory": {"activation_offloading": True, "gradient_checkpointing": False}},
    ),
    "offloads_to_disk": (
        "llama",
        "mixed",
        1,
        {
            "memory": {
                "activation_offloading": True,
                "activation_offloading_target": "disk",
                "gradient_checkpointing": False,
            }
        },
    ),
    "tiles": (
        "llama",
        "mixed",
        2,
        {"memory": {"mlp_tile_tokens": 32, "gradient_checkpointing": False}},
    ),
    "tiles_of_fused_blocks": ("qwen3", "mixed", 1, {"memory": {"mlp_tile_tokens": 32}}),
    # On one rank: int8 leaves small parameters in float32, and of several ranks the one with the
    # heaviest microbatch is not always the one that has most of them.
    "int8_states": ("llama", "mixed", 1, {"memory": {"optimizer_state_dtype": "int8"}}),
    "chooses_chunks": ("llama", "mixed", 1, {"memory": {"head_chunk_tokens": 0}}),
    "three_ranks": ("qwen3", "short", 3, {"memory": {"gradient_checkpointing": False}}),
}
# Weights, gradients and optimizer states, each on two ranks.
SHARDED = {
    name: ("llama", "mixed", 2, {"memory": memory} | more)
    for name, memory, more in [
        ("zero1", {"sharding": "zero1"}, {"training": {"gradient_accumulation_steps": 2}}),
        ("zero1_bfloat16", {"sharding": "zero1"}, {"model": {"dtype": "bfloat16"}}),
        ("zero2", {"sharding": "zero2"}, {}),
        ("keeps_last_block", {"reshard_keeps_last": 1}, {}),
        ("bfloat16_states", {"optimizer_state_dtype": "bfloat16"}, {}),
        (
            "updates_in_backward",
            {"optimizer_in_backward": True},
            {"training": {"max_grad_norm": 0}},
        ),
        ("offloads_optimizer", {"offload_optimizer_device": "cpu"}, {}),
        ("offloads_parameters", {"offload_param_device": "cpu"}, {}),
        (
            "offloads_both",
            {"offload_optimizer_device": "cpu", "offload_param_device": "cpu"},
            {},
        ),
    ]
}
# Experts take what tokens choose; a rehearsal deals evenly.
EXPERTS = {
    "mixtral": ("mixtral", "mixed", 1, {}),
    "qwen3_moe": ("qwen3_moe", "mixed", 2, {}),
}
TOLERANCE = dict.fromkeys(EXPERTS, 0.005)


def make_spec(assets, output, case):
    model, data, world, changes = case
    spec = {
        "name": "rehearsal",
        "method": {"max_length": 128},
        "model": {
            "path": str(assets / "models" / model),
            "tokenizer": str(assets / "tokenizer"),
        },
        "data": {"train": [data], "cache_dir": str(output / "cache")},
        "training": {
            "max_steps": 3,
            "per_device_train_batch_size": 4,
            "save_strategy": "no",
            "output_dir": str(output),
        },
        "memory": {},
        "parallelism": {"num_processes": world},
        "resources": {"device": "cpu", "cpu_threads": 1},
    }
    for section, fields in changes.items():
        spec[section] |= fields
    for field in ("train", "eval"):
        if field in spec["data"]:
            spec["data"][field] = [
                str(assets / "data" / f"{name}.jsonl") for name in spec["data"][field]
            ]
    spec["method"] = {"sft": spec["method"]}
    return spec


def rehearse(trainer, spec, directory):
    path = directory / "rehearsal.json"
    path.write_text(json.dumps({"spec": spec}))
    done = subprocess.run(
        [trainer, "--rehearse", "--input", path], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"--rehearse ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def measure(trainer, spec, world, directory):
    """The last memory event of the rank that held most."""
    ranks.run(trainer, spec, world, directory)
    last = []
    for rank in range(world):
        events = ranks.read_events(directory / f"rank{rank}.out")
        last.append([event["memory"] for event in events if "memory" in event][-1])
    return max(last, key=lambda memory: int(memory["peakBytes"]))


def held(report):
    """Bytes by space and owner, and the peaks of both spaces."""
    found = {"peak": int(report["peakBytes"]), "host peak": int(report.get("hostPeakBytes", 0))}
    for space, field in (("", "owners"), ("host ", "hostOwners")):
        for owner in report.get(field, []):
            found[space + owner["owner"]] = int(owner.get("atPeakBytes", 0))
    return found


def compare(name, rehearsed, measured):
    """What differs by more than the case may, in a sentence; or nothing."""
    want, got = held(measured), held(rehearsed)
    allowed = TOLERANCE.get(name, 0) * want["peak"]
    differing = {
        what: got.get(what, 0) - want.get(what, 0)
        for what in want | got
        if abs(got.get(what, 0) - want.get(what, 0)) > allowed
    }
    if not differing:
        return None
    return f"{name}: rehearsed {got['peak']}, measured {want['peak']}; off by {differing}"


def check(options, name, case):
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        spec = make_spec(options.assets, directory / "out", case)
        rehearsed = rehearse(options.trainer, spec, directory)
        return compare(name, rehearsed, measure(options.trainer, spec, case[2], directory))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--trainer", type=pathlib.Path, required=True)
    parser.add_argument("--assets", type=pathlib.Path, required=True)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("case", nargs="*")
    options = parser.parse_args()
    everything = SLICE | MORE | SHARDED | EXPERTS
    names = options.case or (everything if options.all else SLICE)
    failures = [found for name in names if (found := check(options, name, everything[name]))]
    for failure in failures:
        print(failure)
    print(f"{len(names) - len(failures)} of {len(names)} cases equal")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
