"""What TRL does with the same combinations, read from its source: what it refuses, lacks or gets
wrong, with the place that shows it. That the rest works is not known, only that nothing there is in
its way."""

from dataclasses import dataclass

VERSION = "1.16.0"
# Beside it: what of accelerate and transformers the entries were read in.
BESIDE = "accelerate 1.15.0, transformers 5.23.0"


@dataclass(frozen=True)
class Verdict:
    word: str  # yes, no (not there), refused, ignored, wrong
    reason: str = ""
    where: str = ""  # file, and the place in it


YES = Verdict("yes")
NO_TILES = Verdict(
    "no",
    "no tiling of the feed-forward part",
    "trl/trainer/sft_config.py: no such argument",
)
NO_EVERY = Verdict(
    "no",
    "gradient checkpointing is of all blocks or none",
    "transformers/trainer.py: gradient_checkpointing_enable() on the whole model",
)
SELECTIVE_IN_SFT = Verdict(
    "no",
    "selective checkpointing is looked for by the SFT trainer only",
    "trl/trainer/sft_trainer.py: SFTTrainer.__init__, where gradient_checkpointing_kwargs has "
    "`selective`",
)
NO_DISK = Verdict(
    "no",
    "offloaded activations go to host memory",
    "trl/models/activation_offloading.py: OffloadActivations copies to the CPU",
)
NO_BOUND = Verdict(
    "no",
    "a least size, but no bound on what is offloaded",
    "trl/models/activation_offloading.py: get_act_offloading_ctx_manager, min_offload_size",
)
NO_KEEPS_LAST = Verdict(
    "no",
    "resharding is chosen for the whole model",
    "accelerate/utils/dataclasses.py: FullyShardedDataParallelPlugin.reshard_after_forward",
)
NO_IN_BACKWARD = Verdict(
    "no",
    "layer-wise updates are there for GaLore and the like, not for AdamW",
    "transformers/training_args.py: OptimizerNames",
)
ANY_PRECISION = Verdict(
    "yes",
    "by optim adamw_anyprecision, which is torchdistx's",
    "transformers/training_args.py: OptimizerNames",
)
EIGHT_BITS = Verdict(
    "yes",
    "by optim adamw_bnb_8bit or adamw_torch_8bit, of bitsandbytes and torchao",
    "transformers/training_args.py: OptimizerNames",
)
NO_VOCABULARY = Verdict(
    "no",
    "the head has one output, and is taken whole",
    "trl/trainer/reward_trainer.py: the model is an AutoModelForSequenceClassification",
)
NO_HEAD_CHUNKS = Verdict(
    "no",
    "the head is fused and chunked, in chunks that cannot be chosen",
    "trl/trainer/utils.py: add_fused_lm_head",
)
WHOLE_LOGITS = Verdict(
    "no",
    "the logits of student and teacher are whole",
    "trl/experimental/gkd/gkd_trainer.py: compute_loss",
)
DPO_PADDING_FREE = Verdict(
    "ignored",
    "padding-free is switched off again with a warning",
    "trl/trainer/dpo_trainer.py: DPOTrainer.__init__, where padding_free is set to False",
)
SFT_PADDING_FREE = Verdict(
    "yes",
    "only with max_length unset, or with packing: refused otherwise",
    "trl/trainer/sft_trainer.py: SFTTrainer.__init__, before the dataset is prepared",
)
GKD_PADDING = Verdict(
    "ignored",
    "GKD's collator has no such option",
    "trl/experimental/gkd/gkd_trainer.py: GKDTrainer.__init__ makes a DataCollatorForChatML",
)
SYNCED_ADAPTERS = Verdict(
    "yes",
    "not with sync_ref_model, as here: adapters have no reference of their own",
    "trl/trainer/dpo_trainer.py: DPOTrainer.__init__, where sync_ref_model is checked",
)
NF4_SHARDED = Verdict(
    "yes",
    "under FSDP2 4-bit weights of integer storage are left out of sharding, whole on every rank",
    "accelerate/utils/fsdp_utils.py: fsdp2_prepare_model, ignored_params",
)

NO_PPO = Verdict("no", "there is no PPO any more", "trl/experimental: no ppo")
NO_OFFLOADING = Verdict(
    "no",
    "Online DPO has no such argument",
    "trl/experimental/online_dpo/online_dpo_config.py: no activation_offloading",
)
NO_FUSED_HEAD = Verdict(
    "no",
    "the logits are whole",
    "trl/experimental/online_dpo/online_dpo_trainer.py: _forward",
)

# By technique, of all methods; those that are not here work.
OF_ALL = {
    "recompute-attention": SELECTIVE_IN_SFT,
    "recompute-every-2nd": NO_EVERY,
    "offload-disk": NO_DISK,
    "offload-bounded": NO_BOUND,
    "mlp-tile": NO_TILES,
    "head-chunk": NO_HEAD_CHUNKS,
    "reshard-keeps-last": NO_KEEPS_LAST,
    "states-bf16": ANY_PRECISION,
    "states-int8": EIGHT_BITS,
    "optimizer-in-backward": NO_IN_BACKWARD,
    "qlora-nf4": NF4_SHARDED,
    "qlora-nf4-nested": NF4_SHARDED,
}
ADAPTERS = ("lora", "rslora", "dora", "modules-to-save")
# By method and technique, instead.
OF_METHOD = {
    ("sft", "recompute-attention"): YES,
    ("sft", "padding-free"): SFT_PADDING_FREE,
    ("dpo", "padding-free"): DPO_PADDING_FREE,
    ("reward", "head-chunk"): NO_VOCABULARY,
    ("reward", "head-chunk-auto"): NO_VOCABULARY,
    ("gkd", "recompute-attention"): YES,
    ("gkd", "pad-to-multiple"): GKD_PADDING,
    ("gkd", "head-chunk"): WHOLE_LOGITS,
    ("gkd", "head-chunk-auto"): WHOLE_LOGITS,
    ("online_dpo", "offload-host"): NO_OFFLOADING,
    ("online_dpo", "head-chunk"): NO_FUSED_HEAD,
    ("online_dpo", "head-chunk-auto"): NO_FUSED_HEAD,
} | {("dpo", name): SYNCED_ADAPTERS for name in ADAPTERS}

# Context parallelism splits input_ids, labels, attention_mask and position_ids of a batch
# (transformers/trainer.py: Trainer._prepare_context_parallel_inputs), and nothing else.
OF_METHOD_WITH_CP = {
    "dpo": Verdict(
        "no",
        "the mask of completions stays whole where input_ids is split",
        "trl/trainer/dpo_trainer.py: DataCollatorForPreference makes completion_mask",
    ),
    "kto": Verdict(
        "no",
        "the mask of completions stays whole where input_ids is split, and so does all of the "
        "mismatched rows",
        "trl/trainer/kto_trainer.py: its collator makes completion_mask and KL_input_ids",
    ),
    "reward": Verdict(
        "no",
        "a document's score is of the last token of what one rank has of it",
        "trl/trainer/reward_trainer.py: compute_loss takes the classifier's logits as they are",
    ),
    "gkd": Verdict(
        "no",
        "logits and labels are shifted within what a rank has, across the joints of its parts",
        "trl/experimental/gkd/gkd_trainer.py: compute_loss slices logits and labels",
    ),
    "grpo": Verdict(
        "refused",
        "completions are put together after what context parallelism would split",
        "trl/trainer/grpo_config.py: GRPOConfig.__post_init__, where cp_enabled is checked",
    ),
    "rloo": Verdict(
        "refused",
        "completions are put together after what context parallelism would split",
        "trl/trainer/rloo_config.py: RLOOConfig.__post_init__, where cp_enabled is checked",
    ),
    "online_dpo": Verdict(
        "no",
        "the step of training is its own, and splits nothing",
        "trl/experimental/online_dpo/online_dpo_trainer.py: training_step",
    ),
}
PACKING_WITH_CP = Verdict(
    "refused",
    "context parallelism drops the mask that keeps packed documents apart",
    "trl/trainer/sft_trainer.py: SFTTrainer.__init__, where cp_enabled meets packing",
)
PADDING_FREE_WITH_CP = Verdict(
    "wrong",
    "the same mask is dropped, and nothing checks for it: documents see each other",
    "trl/trainer/sft_trainer.py: SFTTrainer.__init__ checks packing alone",
)
CP_IS_FSDP = Verdict(
    "no",
    "context parallelism is of FSDP2 only, and ZeRO is DeepSpeed's",
    "accelerate/parallelism_config.py: cp_backend is torch; Accelerator.maybe_context_parallel",
)
# With context parallelism: by technique, of SFT.
WITH_CP = {
    "packing-bfd": PACKING_WITH_CP,
    "packing-bfd_split": PACKING_WITH_CP,
    "packing-wrapped": PACKING_WITH_CP,
    "padding-free": PADDING_FREE_WITH_CP,
    "zero1": CP_IS_FSDP,
    "zero2": CP_IS_FSDP,
}


def verdict(kind, technique):
    if kind == "ppo":
        return NO_PPO
    return OF_METHOD.get((kind, technique)) or OF_ALL.get(technique, YES)


def verdict_with_cp(kind, technique):
    """Where the ranks share the sequence."""
    if kind == "ppo":
        return NO_PPO
    if kind in OF_METHOD_WITH_CP:
        return OF_METHOD_WITH_CP[kind]
    alone = verdict(kind, technique)
    return WITH_CP.get(technique, alone if alone.word == "no" else YES)
