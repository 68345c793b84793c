"""Jobs and packing plans from a kit of other recorded TRL runs.

assets/ and data/ hold models, tokenizer and documents; expected/NAME.json the SFTConfig of a run
and what it logged; fixtures/packing.json the documents' token counts and, for each plan, the
segments of its rows.
"""

import hashlib
import itertools
import json

import rows
from kit_rollouts import END_ID, first_step_of_distillation, judged, rollouts, steps_of_ppo
from weights import read_safetensors

CASES = [
    "sft_text_padded",
    "sft_short_padded",
    "sft_short_packing_bfd",
    "sft_short_packing_bfd_split",
    "sft_text_packing_bfd",
    "sft_text_packing_bfd_split",
    "sft_text_packing_wrapped",
    "sft_gradaccum",
    "sft_truncate",
    "sft_warmup_cosine_wd",
    "sft_no_grad_checkpointing",
    "sft_qwen3",
    "sft_qwen3_packing_bfd",
    "sft_pad_to_multiple_of",
    "sft_grad_clip_active",
    "sft_padding_free",
    "sft_dft",
    "sft_ddp2",
    "sft_fsdp2_forced",
    "sft_qwen2",
    "sft_messages",
    "sft_messages_assistant_only",
    "sft_prompt_completion",
    "sft_prompt_completion_full_loss",
    "sft_prompt_completion_packing",
    "sft_lora",
    "dpo_sigmoid",
    "dpo_hinge",
    "dpo_ipo",
    "dpo_robust",
    "dpo_apo_zero",
    "dpo_sigmoid_sft",
    "dpo_gradaccum",
    "dpo_lora",
    "dpo_padding_free",
    "dpo_precompute_ref",
    "kto",
    "kto_apo_zero_unpaired",
    "kto_weights",
    "reward",
    "reward_center",
    "gkd",
    "gkd_forward_kl",
    "gkd_reverse_kl_temp09",
    "gkd_on_policy",
    "grpo",
    "grpo_accum_steps",
    "grpo_bnpo",
    "grpo_dr_grpo",
    "grpo_gspo",
    "grpo_kl_iter2",
    "grpo_mask_truncated",
    "rloo",
    "rloo_iter2",
    "online_dpo",
    "ppo_trl_1_12",
]
TEACHER = "assets/llama_teacher"  # of all gkd cases
# Of two processes; the file names no configuration of its own.
DISTRIBUTED = {"sft_ddp2": "sft_text_padded", "sft_fsdp2_forced": "sft_text_padded"}
# Left out where they have TRL's default.
OPTIONAL_SFT_FIELDS = {"completion_only_loss": None, "assistant_only_loss": False}
OTHER_FIELDS = {
    "dpo": [
        "truncation_mode",
        "padding_free",
        "loss_type",
        "loss_weights",
        "beta",
        "label_smoothing",
        "precompute_ref_log_probs",
    ],
    "kto": ["loss_type", "beta", "desirable_weight", "undesirable_weight"],
    "reward": ["center_rewards_coefficient"],
    "gkd": ["beta", "temperature", "lmbda"],
    "grpo": [
        "num_generations",
        "max_completion_length",
        "steps_per_generation",
        "temperature",
        "beta",
        "num_iterations",
        "epsilon",
        "epsilon_high",
        "delta",
        "loss_type",
        "importance_sampling_level",
        "scale_rewards",
        "mask_truncated_completions",
        "use_bias_correction_kl",
    ],
    "rloo": [
        "num_generations",
        "max_completion_length",
        "steps_per_generation",
        "temperature",
        "beta",
        "num_iterations",
        "epsilon",
        "epsilon_high",
    ],
    "online_dpo": ["max_new_tokens", "max_length", "beta", "loss_type"],
    "ppo": [
        "response_length",
        "temperature",
        "missing_eos_penalty",
        "num_mini_batches",
        "num_ppo_epochs",
        "whiten_rewards",
        "kl_coef",
        "kl_estimator",
        "cliprange",
        "vf_coef",
        "cliprange_value",
        "gamma",
        "lam",
    ],
}
# TRL counts tokens and passes over prompts when it samples, a job when it trains.
NOT_OF_ONLINE = ["step_time", "num_tokens", "epoch"]
# TRL adds these up over what stands behind the end of a completion, too.
WITH_PADDING = [
    "objective/kl",
    "objective/entropy",
    "objective/non_score_reward",
    "objective/rlhf_reward",
]
SFT_FIELDS = ["packing", "packing_strategy", "padding_free", "loss_type"]
TRAINING_FIELDS = [
    "max_steps",
    "learning_rate",
    "warmup_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "seed",
    "train_sampling_strategy",
]


def job(name, kit, world):
    """(JobSpec, expectation) of a recorded run, with the same rows a step at every world size."""
    record = read(kit, DISTRIBUTED.get(name, name))
    if record["name"] == "ppo":
        return ppo_job(record, kit, world)
    config = record["config"]
    training = {field: config[field] for field in TRAINING_FIELDS} | batching(record, world)
    training["lr_scheduler_type"] = str(config["lr_scheduler_type"])
    spec = {
        "method": {record["kind"]: method_options(record, kit)},
        "model": {"path": str(kit / record["model"]), "tokenizer": str(kit / "assets/tokenizer")},
        "data": {"train": str(kit / record["data"])},
        "training": training,
        "memory": {"gradient_checkpointing": config["gradient_checkpointing"]},
    }
    if name in DISTRIBUTED:
        return spec, {"steps": read(kit, name)["ranks"][0]["steps"]}
    trained = {
        parameter.replace(".default.", "."): entry["l2"]
        for parameter, entry in record["final_weights"].items()
        if entry["trained"] or "lora" not in record
    }
    expected = {"steps": record["steps"], "weight_norms": trained}
    if sampled := rollouts(record):
        expected |= {"rollouts": sampled, "steps": online_steps(record)}
        del training["train_sampling_strategy"]
    if name == "gkd_on_policy":
        training["max_steps"] = 1
        expected = {"rollouts": sampled, "steps": [first_step_of_distillation(record)]}
        del expected["steps"][0]["epoch"]
    if "lora" in record:
        spec["peft"], expected["adapter"] = adapter(record, kit)
    return spec, expected


def ppo_job(record, kit, world):
    """TRL's PPO clips no gradients, and logs once for all passes over completions; here each
    mini-batch is a step.
    """
    config = record["config"]
    training = {field: config[field] for field in TRAINING_FIELDS if field in config}
    training.pop("train_sampling_strategy", None)
    training |= {"max_grad_norm": 0.0, "max_steps": -1, "num_train_epochs": 1}
    training |= batching({"config": config, "kind": "ppo"}, world)
    training["lr_scheduler_type"] = str(config["lr_scheduler_type"])
    options = {field: config[field] for field in OTHER_FIELDS["ppo"]}
    spec = {
        "method": {"ppo": options | {"value_model_path": str(kit / record["value"])}},
        "model": {"path": str(kit / record["policy"]), "tokenizer": str(kit / "assets/tokenizer")},
        "data": {},
        "training": training,
        "memory": {"gradient_checkpointing": config["gradient_checkpointing"]},
    }
    norms = {name: entry["l2"] for name, entry in record["final_weights"].items()}
    expected = {
        # The value model begins as the reward model: at the end of a completion TRL's has the
        # score to the last bit, and no gradient. AdamW makes steps of what rounding leaves here.
        "tolerance": 1e-4,
        "rollouts": judged(record),
        "steps": steps_of_ppo(record),
        "model_rows": {"lm_head.weight": {END_ID: record["lm_head_row_2047"]}},
    }
    for prefix, kind in (("policy.", "weight_norms"), ("value_model.", "value_norms")):
        expected[kind] = {
            name.removeprefix(prefix): norm
            for name, norm in norms.items()
            if name.startswith(prefix)
        }
    return spec, expected


def online_steps(record):
    """What a run that sampled logged, but for what is counted otherwise."""
    left_out = NOT_OF_ONLINE + (WITH_PADDING if record["kind"] == "online_dpo" else [])
    steps = [
        {
            field: value
            for field, value in step.items()
            if field not in left_out and value is not None
        }
        for step in record["steps"]
    ]
    if record["kind"] == "online_dpo":  # it rounds
        for step, micro_step in zip(steps, record["micro_steps"], strict=True):
            step["loss"] = micro_step["loss"]
    return steps


def method_options(record, kit):
    config, method = record["config"], record["kind"]
    if method in ("grpo", "rloo", "online_dpo"):
        return {field: config[field] for field in OTHER_FIELDS[method] if config[field] is not None}
    options = {
        "max_length": config["max_length"] or 0,
        "pad_to_multiple_of": config["pad_to_multiple_of"] or 0,
    }
    if method == "sft":
        options |= {field: config[field] for field in SFT_FIELDS}
        return options | {
            field: config[field]
            for field, default in OPTIONAL_SFT_FIELDS.items()
            if config[field] != default
        }
    options |= {field: config[field] for field in OTHER_FIELDS[method] if config[field] is not None}
    if method == "gkd":
        options["teacher_model_name_or_path"] = str(kit / TEACHER)
    return options


def adapter(record, kit):
    """(peft of the JobSpec, tensors) of the adapter that the run began with."""
    file = kit / "expected" / record["initial_adapter"]
    tensors = {
        name.replace(".default.", "."): values.astype("float32")
        for name, values in read_safetensors(file)
    }
    targets = {name.split(".lora_")[0].rsplit(".", 1)[1] for name in tensors}
    options = {
        "lora_r": record["lora"]["r"],
        "lora_alpha": record["lora"]["alpha"],
        "lora_dropout": 0.0,
        "lora_target_modules": sorted(targets),
    }
    return options, tensors


def read(kit, name):
    return json.loads((kit / "expected" / f"{name}.json").read_text())


def batching(record, world):
    """The recorded microbatches, whatever the number of ranks: the last may have no row of them.

    The rows of a KTO microbatch exchange completions before they are dealt to ranks.
    """
    config = record["config"]
    batch = config["per_device_train_batch_size"]
    split = batch % world != 0 or record["kind"] == "kto"
    return {
        "per_device_train_batch_size": batch if split else batch // world,
        "gradient_accumulation_steps": config["gradient_accumulation_steps"],
        "accelerator_config": {"split_batches": split},
    }


def plans(tool, kit):
    """Yields (name, actual rows, description expected) of each plan in fixtures/packing.json."""
    fixture = json.loads((kit / "fixtures" / "packing.json").read_text())
    data, tokenizer = kit / fixture["dataset"], kit / "assets" / "tokenizer"
    documents = [tokens for tokens, _ in rows.prepare(tool, data, tokenizer, 0, "none")]
    digest = hashlib.sha256(json.dumps(documents).encode()).hexdigest()
    if digest != fixture["doc_ids_sha256"]:
        lengths = enumerate(zip(map(len, documents), fixture["doc_lengths"], strict=False))
        differing = [i for i, (actual, expected) in lengths if actual != expected]
        raise SystemExit(
            f"the tokens of {data} differ from TRL's; documents of another length: {differing[:10]}"
        )
    for name, plan in fixture["plans"].items():
        strategy, max_length = name.rsplit("_", 1)
        expected = []
        for row in plan["rows"]:
            parts = [
                documents[document][start : start + length]
                for document, start, length in row["segments"]
            ]
            lengths = row.get("seq_lengths") or [sum(map(len, parts))]
            expected.append((list(itertools.chain(*parts)), lengths))
        yield (
            name,
            rows.prepare(tool, data, tokenizer, int(max_length), strategy),
            rows.describe(expected),
        )
