#!/usr/bin/env python3
"""Rehearsed memory against measured memory, owner by owner.

    rehearsal_test.py --trainer PATH --assets DIR [--all] [CASE ...]

Each case is rehearsed, then run in processes. The peak of the rank that held most, and what each
owner had of it, must be what the rehearsal said, to the byte. Cases with a tolerance say why.
"""

import pathlib
import tempfile

import ranks
import trials
from trials import Trials, expect, held, last_memory

# name: (model, data, world, changes to the spec by section; "kind" is the method). The slice is
# what ctest runs.
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
    "dpo": ("llama", "preferences", 2, {"kind": "dpo", "data": {"eval": ["preferences_few"]}}),
    "kto": ("qwen3", "judged", 2, {"kind": "kto", "data": {"eval": ["judged_few"]}}),
    "reward": ("llama", "pairs", 2, {"kind": "reward", "data": {"eval": ["pairs_few"]}}),
    "gkd": ("llama", "chats", 2, {"kind": "gkd", "data": {"eval": ["chats_few"]}}),
    "cp": (
        "qwen3",
        "mixed",
        2,
        {"parallelism": {"cp_size": 2}, "memory": {"gradient_checkpointing": False}},
    ),
    "hsdp": ("llama", "mixed", 2, {"parallelism": {"dp_replicate_size": 2}}),
}
MORE = {
    "dpo_of_all_rows": (
        "qwen3",
        "preferences",
        2,
        {
            "kind": "dpo",
            "method": {"loss_type": ["aot", "sft"], "ld_alpha": 0.5},
            "training": {"gradient_accumulation_steps": 2},
            "memory": {"gradient_checkpointing": False},
        },
    ),
    "dpo_weighting_bfloat16": (
        "llama",
        "preferences",
        1,
        {"kind": "dpo", "method": {"use_weighting": True}, "model": {"dtype": "bfloat16"}},
    ),
    "grpo": (
        "llama",
        "rollouts_sampled",
        2,
        {
            "kind": "grpo",
            "method": {"num_generations": 4, "num_iterations": 2, "beta": 0.1},
            "training": {"per_device_train_batch_size": 6},
        },
    ),
    "rloo_lora": (
        "qwen3",
        "rollouts",
        1,
        {
            "kind": "rloo",
            "method": {"num_generations": 4},
            "training": {"per_device_train_batch_size": 12},
            "peft": {"lora_r": 4},
        },
    ),
    "online_dpo": ("llama", "rollouts_pairs", 2, {"kind": "online_dpo"}),
    "ppo": (
        "llama",
        "rollouts_judged",
        2,
        {
            "kind": "ppo",
            "method": {"num_mini_batches": 2},
            "training": {"per_device_train_batch_size": 8},
        },
    ),
    "dpo_precompute": (
        "llama",
        "preferences",
        2,
        {
            "kind": "dpo",
            "method": {"precompute_ref_log_probs": True, "precompute_ref_batch_size": 16},
        },
    ),
    "dpo_sync": (
        "llama",
        "preferences",
        2,
        {
            "kind": "dpo",
            "method": {"sync_ref_model": True, "ref_model_sync_steps": 1},
            "training": {"save_strategy": "steps", "save_steps": 1, "async_save": False},
        },
    ),
    "dpo_offloads_parameters": (
        "llama",
        "preferences",
        2,
        {"kind": "dpo", "memory": {"offload_param_device": "cpu"}},
    ),
    "kto_unpaired": (
        "llama",
        "judged",
        1,
        {"kind": "kto", "method": {"loss_type": "apo_zero_unpaired"}},
    ),
    "reward_of_margins": (
        "qwen3",
        "pairs_margins",
        1,
        {"kind": "reward", "memory": {"gradient_checkpointing": False}},
    ),
    "reward_bfloat16": ("llama", "pairs", 1, {"kind": "reward", "model": {"dtype": "bfloat16"}}),
    "gkd_small_chunks": (
        "qwen3",
        "chats",
        1,
        {"kind": "gkd", "method": {"beta": 0}, "memory": {"head_chunk_tokens": 16}},
    ),
    "gkd_bfloat16": ("llama", "chats", 1, {"kind": "gkd", "model": {"dtype": "bfloat16"}}),
    "gkd_offloads_parameters": (
        "llama",
        "chats",
        2,
        {"kind": "gkd", "memory": {"offload_param_device": "cpu"}},
    ),
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
    # These leave small parameters in float32, and one rank may have more of them than another.
    "int8_states": ("llama", "mixed", 1, {"memory": {"optimizer_state_dtype": "int8"}}),
    "int8_states_two_ranks": (
        "llama",
        "mixed",
        2,
        {"memory": {"optimizer_state_dtype": "int8"}},
    ),
    "int8_states_three_ranks": (
        "qwen3",
        "mixed",
        3,
        {
            "memory": {"optimizer_state_dtype": "int8"},
            "training": {"gradient_accumulation_steps": 3},
        },
    ),
    "int8_states_of_one_stream": (
        "llama",
        "mixed",
        2,
        {"memory": {"optimizer_state_dtype": "int8"}, "parallelism": {"cp_size": 2}},
    ),
    "bfloat16_accumulation": (
        "llama",
        "short",
        1,
        {"model": {"dtype": "bfloat16"}, "training": {"gradient_accumulation_steps": 3}},
    ),
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
# Axes of the mesh.
MESHES = {
    f"cp_{name}": (model, "mixed", world, {"parallelism": mesh} | more)
    for name, model, world, mesh, more in [
        ("allgather", "llama", 2, {"cp_size": 2, "cp_strategy": "allgather"}, {}),
        ("ring", "llama", 2, {"cp_size": 2, "cp_strategy": "ring"}, {}),
        ("ulysses", "llama", 2, {"cp_size": 2, "cp_strategy": "ulysses"}, {}),
        ("three", "qwen3", 3, {"cp_size": 3, "cp_strategy": "ring"}, {}),
        ("of_two_shards", "qwen3", 4, {"cp_size": 2}, {}),
        ("of_two_copies", "llama", 4, {"cp_size": 2, "dp_replicate_size": 2}, {}),
        ("packed", "qwen3", 2, {"cp_size": 2}, {"method": {"packing": True}}),
        ("bfloat16", "llama", 2, {"cp_size": 2}, {"model": {"dtype": "bfloat16"}}),
        ("dropout", "llama", 2, {"cp_size": 2}, {"model": {"hidden_dropout": 0.1}}),
        ("offloads", "llama", 2, {"cp_size": 2}, {"memory": {"activation_offloading": True}}),
        (
            "without_recompute",
            "llama",
            2,
            {"cp_size": 2},
            {"memory": {"gradient_checkpointing": False}},
        ),
    ]
} | {
    f"hsdp_{name}": ("llama", "mixed", world, {"parallelism": {"dp_replicate_size": 2}} | more)
    for name, world, more in [
        ("of_two_shards", 4, {}),
        ("zero1", 4, {"memory": {"sharding": "zero1"}}),
        (
            "updates_in_backward",
            4,
            {"memory": {"optimizer_in_backward": True}, "training": {"max_grad_norm": 0}},
        ),
    ]
}
# Experts take what tokens choose; a rehearsal deals evenly.
EXPERTS = {
    "mixtral": ("mixtral", "mixed", 1, {}),
    "qwen3_moe": ("qwen3_moe", "mixed", 2, {}),
}
# Pairs: a rank's labels are counted for its heaviest microbatch by tokens. PPO: completions are
# scored in the microbatches of the first pass, and the heaviest may be one of another.
TOLERANCE = dict.fromkeys([*EXPERTS, "dpo", "ppo"], 0.005)


def make_spec(options, output, case):
    model, data, world, changes = case
    kind = changes.get("kind", "sft")
    training = {
        "max_steps": 3,
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
    } | changes.get("training", {})
    fields = {"data.cache_dir": str(output / "cache")}
    if kind not in trials.ONLINE:
        fields[f"method.{kind}.max_length"] = 128
    if kind == "gkd":
        fields |= {
            "method.gkd.teacher_model_name_or_path": str(
                options.assets / "models" / "llama_teacher"
            ),
            "method.gkd.chat_template_path": str(options.assets / "chat.jinja"),
        }
    if kind == "ppo":
        value_model = options.assets / "models" / "llama_reward"
        fields["method.ppo.value_model_path"] = str(value_model)
    for section, values in changes.items():
        if section == "kind":
            continue
        path = f"method.{kind}" if section == "method" else section
        fields |= {f"{path}.{name}": value for name, value in values.items()}
    if "data.eval" in fields:
        fields["data.eval"] = [
            str(options.assets / "data" / f"{name}.jsonl") for name in fields["data.eval"]
        ]
    return trials.make_spec(
        options, output, world, method=kind, model=model, train=data, fields=fields, **training
    )


def measure(trainer, spec, world, directory):
    """The last memory event of the rank that held most."""
    ranks.run(trainer, spec, world, directory)
    last = [last_memory(ranks.read_events(directory / f"rank{rank}.out")) for rank in range(world)]
    return max(last, key=lambda memory: int(memory["peakBytes"]))


def check(options, name, case):
    """Differences are as many bytes as the case may have them."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = pathlib.Path(scratch)
        spec = make_spec(options, directory / "out", case)
        got = held(trials.rehearse(options, spec, directory))
        want = held(measure(options.trainer, spec, case[2], directory))
    allowed = TOLERANCE.get(name, 0) * want["peak"]
    differing = {
        what: got.get(what, 0) - want.get(what, 0)
        for what in want | got
        if abs(got.get(what, 0) - want.get(what, 0)) > allowed
    }
    expect(not differing, f"rehearsed {got['peak']}, measured {want['peak']}; off by {differing}")
    return f"{want['peak']} bytes"


def add_options(parser):
    parser.add_argument("--all", action="store_true")
    parser.add_argument("case", nargs="*")


def main():
    options = trials.parse(__doc__, add_options)
    everything = SLICE | MORE | SHARDED | MESHES | EXPERTS
    checks = Trials()
    for name in options.case or (everything if options.all else SLICE):
        checks.attempt(name, check, options, name, everything[name])
    checks.finish()


if __name__ == "__main__":
    main()
