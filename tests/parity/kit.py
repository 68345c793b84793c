"""Jobs and packing plans from a kit of other recorded TRL runs.

assets/ and data/ hold models, tokenizer and documents; expected/NAME.json the SFTConfig of a run
and what it logged; fixtures/packing.json the documents' token counts and, for each plan, the
segments of its rows.
"""

import hashlib
import itertools
import json

import rows
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
}
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
    if "lora" in record:
        spec["peft"], expected["adapter"] = adapter(record, kit)
    return spec, expected


def method_options(record, kit):
    config, method = record["config"], record["kind"]
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
