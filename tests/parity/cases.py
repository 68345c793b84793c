"""The parity cases: what is trained, by TRL (run_trl.py) and by Tessera (parity_test.py).

Run as a program, it prints their names.

Options have the names that job files, SFTConfig and TrainingArguments share. A case's batch counts
the rows of all ranks, so that one expectation holds at every world size; 12 divides by 1 to 4.
"""

import dataclasses
import json
import pathlib

from online_cases import online_cases

EXPECTED = pathlib.Path(__file__).parent / "expected"
GLOBAL_BATCH = 12
STEPS = 8

# Used by every case unless it says otherwise.
SFT = {"max_length": 96}
TRAINING = {
    "max_steps": STEPS,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "max_grad_norm": 1.0,
    "weight_decay": 0.0,
    "gradient_accumulation_steps": 1,
    "train_sampling_strategy": "sequential",
    "seed": 42,
}
MEMORY = {"gradient_checkpointing": True}


@dataclasses.dataclass(frozen=True)
class Case:
    model: str = "llama"
    data: str = "mixed"
    eval: str = ""  # held-out documents; none
    batch: int = GLOBAL_BATCH  # rows of a microbatch, over all ranks; of an evaluation too
    method: str = "sft"  # of the job file
    sft: dict = dataclasses.field(default_factory=dict)
    options: dict = dataclasses.field(default_factory=dict)  # of a method that is not sft
    teacher: str = ""  # of gkd: a model
    reference: str = ""  # of dpo, kto and ppo: a model; the one that is trained, before it is
    value: str = ""  # of ppo: what its value model begins as
    training: dict = dataclasses.field(default_factory=dict)
    memory: dict = dataclasses.field(default_factory=dict)
    # Adapters, which begin as adapters.py says. Empty: every weight is trained.
    peft: dict = dataclasses.field(default_factory=dict)
    # Case with the same numbers. Its expectation serves: the option is Tessera's own.
    same_as: str = ""

    def sft_options(self):
        return SFT | self.sft

    def method_options(self):
        if self.method == "sft":
            return self.sft_options()
        return self.options if self.is_online() else SFT | self.options

    def data_field(self):
        return "rollouts" if self.is_online() else "train"

    def is_online(self):
        return self.method in ("grpo", "rloo", "online_dpo", "ppo")

    def is_chat(self):
        return "chats" in self.data

    def training_options(self):
        return TRAINING | self.training

    def memory_options(self):
        return MEMORY | self.memory


def lora(**options):
    return {"lora_r": 4, "lora_alpha": 12, "lora_dropout": 0.0} | options


def packed(strategy, **sft):
    return {"packing": True, "packing_strategy": strategy} | sft


CASES = {
    "text_padded": Case(),
    "short_padded": Case(data="short"),
    "truncate": Case(sft={"max_length": 20}),
    "unlimited_length": Case(sft={"max_length": 0}),
    "pad_to_multiple_of": Case(sft={"pad_to_multiple_of": 32}),
    # Many documents a row, and rows of one document that was too long.
    "short_packing_bfd": Case(data="short", sft=packed("bfd")),
    "short_packing_bfd_split": Case(data="short", sft=packed("bfd_split", max_length=32)),
    "short_packing_wrapped": Case(data="short", sft=packed("wrapped", max_length=40)),
    "text_packing_bfd": Case(sft=packed("bfd")),
    "text_packing_bfd_split": Case(sft=packed("bfd_split", max_length=64)),
    "text_packing_wrapped": Case(sft=packed("wrapped")),
    "qwen3": Case(model="qwen3"),
    "qwen3_untied": Case(model="qwen3_untied"),
    "qwen3_packing_bfd": Case(model="qwen3", data="short", sft=packed("bfd")),
    "llama_tied": Case(model="llama_tied"),
    "llama_bias": Case(model="llama_bias"),
    "llama_tied_packing_bfd_split": Case(
        model="llama_tied", sft=packed("bfd_split", max_length=48)
    ),
    # The embedding of config.json's pad_token_id gets no gradient, wherever the token stands.
    "qwen2": Case(model="qwen2"),
    "qwen2_packing_bfd": Case(model="qwen2", data="short", sft=packed("bfd")),
    "mistral": Case(model="mistral"),
    "qwen3_moe": Case(model="qwen3_moe"),
    "qwen3_moe_grad_accum": Case(
        model="qwen3_moe",
        sft={"router_aux_loss_coef": 0.5},
        training={"gradient_accumulation_steps": 3, "max_steps": 4},
        memory={"gradient_checkpointing": False},
    ),
    "pad_token_in_text": Case(data="pads"),
    "pad_token_in_text_tied": Case(model="llama_tied", data="pads"),
    "grad_accum": Case(training={"gradient_accumulation_steps": 3, "max_steps": 5}),
    "grad_accum_packing": Case(
        data="short",
        sft=packed("bfd", max_length=64),
        training={"gradient_accumulation_steps": 2, "max_steps": 5},
    ),
    "warmup_cosine_wd": Case(
        training={"lr_scheduler_type": "cosine", "warmup_steps": 3, "weight_decay": 0.1}
    ),
    "linear_warmup": Case(training={"lr_scheduler_type": "linear", "warmup_steps": 2}),
    "warmup_share": Case(
        training={"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.3}
    ),
    "adam_options": Case(
        training={"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-4, "weight_decay": 0.3}
    ),
    "max_grad_norm": Case(training={"max_grad_norm": 0.3, "adam_epsilon": 1e-3}),
    "no_clipping": Case(training={"max_grad_norm": 0.0}),
    "no_grad_checkpointing": Case(memory={"gradient_checkpointing": False}),
    # Epochs of 31 rows: three microbatches, the last of 7 rows; two steps, the last of one of them.
    "epochs": Case(
        data="few",
        training={"max_steps": -1, "num_train_epochs": 3, "gradient_accumulation_steps": 2},
    ),
    "epochs_part": Case(
        data="few",
        training={"max_steps": -1, "num_train_epochs": 1.6, "lr_scheduler_type": "linear"},
    ),
    "drop_last": Case(data="few", training={"max_steps": 5, "dataloader_drop_last": True}),
    "random_order": Case(data="few", training={"train_sampling_strategy": "random", "seed": 7}),
    "random_packing": Case(
        data="short", sft=packed("bfd"), training={"train_sampling_strategy": "random"}
    ),
    # Ranks' shares of a batch that differ by a row.
    "split_batches": Case(batch=5, training={"accelerator_config": {"split_batches": True}}),
    # Losses.
    "dft": Case(sft={"loss_type": "dft"}),
    "dft_grad_accum_packing": Case(
        data="short",
        sft=packed("bfd", max_length=64, loss_type="dft"),
        training={"gradient_accumulation_steps": 2, "max_steps": 4},
    ),
    "chunked_nll": Case(sft={"loss_type": "chunked_nll"}, same_as="text_padded"),
    "label_smoothing": Case(training={"label_smoothing_factor": 0.1}),
    "label_smoothing_grad_accum": Case(
        model="llama_tied",
        training={
            "label_smoothing_factor": 0.4,
            "gradient_accumulation_steps": 2,
            "max_steps": 4,
        },
    ),
    # Schedules and optimizers.
    "cosine_with_min_lr": Case(
        training={
            "lr_scheduler_type": "cosine_with_min_lr",
            "warmup_steps": 2,
            "lr_scheduler_kwargs": {"min_lr_rate": 0.2},
        }
    ),
    "warmup_stable_decay": Case(
        training={
            "lr_scheduler_type": "warmup_stable_decay",
            "warmup_steps": 2,
            "lr_scheduler_kwargs": {
                "num_decay_steps": 3,
                "decay_type": "1-sqrt",
                "min_lr_ratio": 0.1,
            },
        }
    ),
    "plateau": Case(
        eval="few",
        training={
            "lr_scheduler_type": "reduce_lr_on_plateau",
            "lr_scheduler_kwargs": {"patience": 0, "factor": 0.5, "threshold": 0.05},
            "learning_rate": 4e-3,
            "eval_strategy": "steps",
            "eval_steps": 1,
        },
    ),
    "weight_decay_bias": Case(
        model="llama_bias",
        training={"weight_decay": 0.5, "optim": "adamw_torch", "learning_rate": 4e-3},
    ),
    # What is logged, and when.
    "logging_steps": Case(
        data="few",
        training={"max_steps": 7, "gradient_accumulation_steps": 2, "logging_steps": 3},
    ),
    "logging_share_first": Case(training={"logging_steps": 0.3, "logging_first_step": True}),
    "logging_epoch": Case(
        data="few",
        training={"max_steps": 7, "gradient_accumulation_steps": 2, "logging_strategy": "epoch"},
    ),
    # Evaluation: 31 held-out rows are three batches, the last of 7 rows.
    "eval_steps": Case(
        eval="few",
        training={"eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True},
    ),
    "eval_epoch_delay": Case(
        data="few",
        eval="short",
        batch=24,
        sft=packed("bfd", max_length=64),
        training={
            "max_steps": -1,
            "num_train_epochs": 3,
            "eval_strategy": "epoch",
            "eval_delay": 2,
            "logging_steps": 2,
        },
    ),
    "eval_dft": Case(
        eval="few",
        sft={"loss_type": "dft"},
        training={"max_steps": 2, "eval_strategy": "steps", "eval_steps": 0.5},
    ),
    "eval_label_smoothing": Case(
        eval="few",
        training={
            "max_steps": 2,
            "label_smoothing_factor": 0.2,
            "eval_strategy": "steps",
            "eval_steps": 1,
        },
    ),
    # The entropy falls: the first evaluation has the greatest.
    "best_model": Case(
        data="few",
        eval="short",
        training={
            "max_steps": 6,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "save_strategy": "steps",
            "save_steps": 2,
            "save_total_limit": 1,
            "load_best_model_at_end": True,
            "metric_for_best_model": "entropy",
        },
    ),
    "early_stopping": Case(
        data="few",
        eval="short",
        training={
            "max_steps": 30,
            "eval_strategy": "epoch",
            "save_strategy": "best",
            "metric_for_best_model": "eval_entropy",
            "load_best_model_at_end": True,
            "early_stopping_patience": 2,
            "early_stopping_threshold": 0.001,
        },
    ),
    # Adapters.
    "lora": Case(peft=lora()),
    "lora_all_linear": Case(
        model="llama_bias",
        data="short",
        sft=packed("bfd", max_length=64),
        training={"gradient_accumulation_steps": 2, "max_steps": 5},
        peft=lora(lora_target_modules=["all-linear"]),
    ),
    "lora_rslora": Case(
        model="qwen3",
        training={"weight_decay": 0.1},
        memory={"gradient_checkpointing": False},
        peft=lora(use_rslora=True, lora_target_modules=["o_proj", "up_proj", "down_proj"]),
    ),
    "lora_dora": Case(
        model="qwen2",
        training={"weight_decay": 0.1},
        peft=lora(use_dora=True, lora_target_modules=["q_proj", "k_proj", "gate_proj"]),
    ),
    "lora_modules_to_save": Case(
        training={"weight_decay": 0.1},
        peft=lora(lora_modules_to_save=["embed_tokens", "lm_head", "norm"]),
    ),
    "lora_eval": Case(
        model="mistral",
        eval="few",
        training={"eval_strategy": "steps", "eval_steps": 3},
        peft=lora(),
    ),
    "lora_experts_frozen": Case(
        model="qwen3_moe", peft=lora(lora_target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    ),
    "reshard_off": Case(memory={"reshard_after_forward": False}, same_as="text_padded"),
    "head_chunks": Case(memory={"head_chunk_tokens": 7}, same_as="text_padded"),
}


def reward(model="llama_reward", data="pairs", training=None, peft=None, eval="", **options):
    return Case(
        model=model,
        data=data,
        eval=eval,
        method="reward",
        options=options,
        training=training or {},
        peft=peft or {},
    )


def gkd(model="llama", data="chats", training=None, peft=None, eval="", **options):
    return Case(
        model=model,
        data=data,
        eval=eval,
        method="gkd",
        teacher="llama_teacher",
        options=options,
        training=training or {},
        peft=peft or {},
    )


ACCUMULATION = {"gradient_accumulation_steps": 3, "max_steps": 4}
CASES |= {
    "reward": reward(),
    "reward_margin": reward(data="pairs_margins", training={"learning_rate": 3e-4}),
    "reward_center": reward(center_rewards_coefficient=0.1),
    "reward_chats": reward(data="pairs_chats", training={"learning_rate": 3e-4}),
    # Documents that end with padding.
    "reward_tokens": reward(data="pairs_tokens", max_length=0, training={"learning_rate": 2e-4}),
    "reward_grad_accum": reward(
        model="qwen2_reward",
        data="pairs_margins",
        training=ACCUMULATION,
        center_rewards_coefficient=0.01,
    ),
    "reward_split_batches": dataclasses.replace(
        reward(training={"accelerator_config": {"split_batches": True}}), batch=5
    ),
    "reward_eval": reward(
        eval="pairs_few",
        training={"eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True},
    ),
    "reward_lora": reward(peft=lora(), training={"weight_decay": 0.1}),
    "gkd": gkd(beta=0.5),
    "gkd_forward_kl": gkd(beta=0.0, model="qwen3"),
    "gkd_reverse_kl": gkd(beta=1.0),
    "gkd_grad_accum": gkd(beta=0.3, training=ACCUMULATION),
    "gkd_split_batches": dataclasses.replace(
        gkd(beta=0.9, training={"accelerator_config": {"split_batches": True}}), batch=5
    ),
    "gkd_eval": gkd(
        beta=0.5,
        eval="chats_few",
        training={"eval_strategy": "steps", "eval_steps": 3, "eval_on_start": True},
    ),
    "gkd_lora": gkd(beta=0.1, peft=lora()),
    "gkd_head_chunks": dataclasses.replace(
        gkd(beta=0.5), memory={"head_chunk_tokens": 7}, same_as="gkd"
    ),
}


PREFERENCE_STEPS = 4
EVALUATION = {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}


def dpo(model="llama", batch=GLOBAL_BATCH, training=None, memory=None, same_as="", **options):
    where = {key: options.pop(key) for key in ("eval", "peft", "reference") if key in options}
    return Case(
        model=model,
        data="preferences",
        batch=batch,
        method="dpo",
        options=options,
        training={"max_steps": PREFERENCE_STEPS} | (training or {}),
        memory=memory or {},
        same_as=same_as,
        **where,
    )


def kto(model="llama", training=None, **options):
    """Rows that exchange their completions are those of a batch, whatever the number of ranks."""
    where = {key: options.pop(key) for key in ("eval", "peft", "reference") if key in options}
    return Case(
        model=model,
        data="judged",
        method="kto",
        options=options,
        training={"max_steps": PREFERENCE_STEPS, "accelerator_config": {"split_batches": True}}
        | (training or {}),
        **where,
    )


CASES |= {
    "dpo": dpo(eval="preferences_few", training=EVALUATION),
    "dpo_hinge": dpo(loss_type=["hinge"]),
    "dpo_ipo": dpo(loss_type=["ipo"]),
    "dpo_exo_pair": dpo(loss_type=["exo_pair"], label_smoothing=0.1),
    "dpo_nca_pair": dpo(loss_type=["nca_pair"]),
    "dpo_robust": dpo(loss_type=["robust"], label_smoothing=0.2),
    "dpo_bco_pair": dpo(loss_type=["bco_pair"]),
    "dpo_sppo_hard": dpo(loss_type=["sppo_hard"]),
    "dpo_aot": dpo(loss_type=["aot"], label_smoothing=0.1),
    "dpo_aot_unpaired": dpo(loss_type=["aot_unpaired"]),
    "dpo_apo_zero": dpo(loss_type=["apo_zero"]),
    "dpo_apo_down": dpo(loss_type=["apo_down"]),
    "dpo_discopop": dpo(loss_type=["discopop"], discopop_tau=0.2),
    "dpo_sft": dpo(loss_type=["sft"]),
    "dpo_sigmoid_norm": dpo(loss_type=["sigmoid_norm"], beta=2.0),
    "dpo_sum": dpo(loss_type=["sigmoid", "bco_pair", "sft"], loss_weights=[0.8, 0.2, 1.0]),
    "dpo_sum_of_all_rows": dpo(loss_type=["aot", "hinge"], loss_weights=[0.5, 2.0]),
    # These take exponentials of sums over tokens: of long ones TRL's own rounding shows.
    "dpo_forward_kl": dpo(
        f_divergence_type="forward_kl", max_length=24, training={"learning_rate": 1e-4}
    ),
    "dpo_js_divergence": dpo(f_divergence_type="js_divergence"),
    "dpo_alpha_divergence": dpo(
        f_divergence_type="alpha_divergence",
        f_alpha_divergence_coef=0.3,
        max_length=24,
        loss_type=["hinge"],
        training={"learning_rate": 1e-4},
    ),
    "dpo_ld_alpha": dpo(ld_alpha=0.4),
    "dpo_weighting": dpo(use_weighting=True, loss_type=["sigmoid", "bco_pair"]),
    "dpo_grad_accum": dpo(training={"gradient_accumulation_steps": 2}, batch=6),
    "dpo_epochs": dpo(
        training={"max_steps": -1, "num_train_epochs": 1.5, "gradient_accumulation_steps": 2},
        loss_type=["aot"],
    ),
    "dpo_split_batches": dpo(
        batch=5, training={"accelerator_config": {"split_batches": True}}, loss_type=["aot", "sft"]
    ),
    "dpo_keep_end": dpo(truncation_mode="keep_end", max_length=24, loss_type=["ipo"]),
    "dpo_lora": dpo(peft=lora(), eval="preferences_few", training=EVALUATION),
    "dpo_reference": dpo(reference="llama_bias"),
    "dpo_sync": dpo(
        sync_ref_model=True,
        ref_model_mixup_alpha=0.7,
        ref_model_sync_steps=2,
        training={"max_steps": 6},
    ),
    "dpo_precompute": dpo(
        precompute_ref_log_probs=True, eval="preferences_few", training=EVALUATION, ld_alpha=0.5
    ),
    "dpo_precompute_reference": dpo(
        precompute_ref_log_probs=True, precompute_ref_batch_size=4, reference="llama_bias"
    ),
    "dpo_mixture": dpo(
        model="qwen3_moe", router_aux_loss_coef=0.3, training={"gradient_accumulation_steps": 2}
    ),
    "dpo_tied": dpo(model="llama_tied", memory={"gradient_checkpointing": False}),
    "kto": kto(eval="judged_few", training=EVALUATION),
    "kto_apo_zero_unpaired": kto(loss_type="apo_zero_unpaired"),
    "kto_weights": kto(desirable_weight=1.4, undesirable_weight=0.6, beta=0.3),
    "kto_grad_accum": kto(training={"gradient_accumulation_steps": 3}),
    "kto_lora": kto(peft=lora()),
    "kto_precompute": kto(precompute_ref_log_probs=True, eval="judged_few", training=EVALUATION),
    "kto_sync": kto(sync_ref_model=True, ref_model_sync_steps=1, model="qwen3"),
}

CASES |= {name: Case(**case) for name, case in online_cases(GLOBAL_BATCH, lora()).items()}


def expectation(name):
    """What run_trl.py recorded for the case."""
    return json.loads((EXPECTED / f"{CASES[name].same_as or name}.json").read_text())


def check_assets(expected, assets):
    """The numbers hold for the files they were made from, and no others."""
    manifest = json.loads((assets / "manifest.json").read_text())
    for file, digest in expected["assets"].items():
        if manifest.get(file) != digest:
            raise SystemExit(
                f"{assets / file} is not the file that {expected['case']}.json was made from: its "
                f"hash is {manifest.get(file)}, expected {digest}. Was make_assets.py changed? "
                "Then run run_trl.py again."
            )


if __name__ == "__main__":
    print("\n".join(CASES))
