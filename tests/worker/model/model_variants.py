"""The models that compare_models.py tries: a configuration of each family and of each feature.

Each is a row: its name, the family's configuration class, what differs from the tiny model that all
start from, and how the directory is written.
"""

import dataclasses

BASE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
MIXTURE = {
    "num_experts_per_tok": 2,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.1,
}
# By family: the class, and what its tiny model has beyond BASE.
FAMILIES = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 12}),
    "qwen3_moe": (
        "Qwen3Moe",
        MIXTURE | {"head_dim": 12, "num_experts": 5, "moe_intermediate_size": 24},
    ),
    "mixtral": ("Mixtral", MIXTURE | {"head_dim": 8, "num_local_experts": 5}),
}
ROPES = {
    "linear": {"rope_type": "linear", "factor": 2.5},
    "dynamic": {"rope_type": "dynamic", "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}
YARNS = {
    "yarn_not_cut": {"truncate": False},
    "yarn_null_cut": {"truncate": None},
    "yarn_attention_factor": {"attention_factor": 1.3},
    "yarn_mscale": {"mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn_betas": {"beta_fast": 20.0, "beta_slow": 2.0},
    "yarn_beta_zero": {"beta_fast": 0, "beta_slow": None},
    "yarn_no_original": {"original_max_position_embeddings": None},
    "yarn_no_factor": {"factor": None},
}
WINDOWED = {"use_sliding_window": True, "sliding_window": 5}


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    family: str
    config: dict = dataclasses.field(default_factory=dict)
    # Fields of the written config.json that are replaced; a None value removes the field.
    edits: dict = dataclasses.field(default_factory=dict)
    stored: str = "float32"  # dtype of the weights' files
    compute: str = "float32"
    files: int = 1
    fused: bool = False  # experts as transformers holds them in memory
    old_rope: bool = False  # rope_theta and rope_scaling, as before transformers 5
    recompute: bool = False


def ropes():
    for family in FAMILIES:
        for rope, parameters in ROPES.items():
            # Documents here are longer than that.
            length = {"max_position_embeddings": 16} if rope == "dynamic" else {}
            config = {"rope_parameters": {"rope_theta": 5000.0} | parameters} | length
            yield Variant(f"{family}_{rope}", family, config, old_rope=family in ("llama", "qwen2"))
    for name, options in YARNS.items():
        parameters = {k: v for k, v in (ROPES["yarn"] | options).items() if k != "rope_theta"}
        if name == "yarn_no_original":
            del parameters["original_max_position_embeddings"]
        yield Variant(name, "llama", {"rope_parameters": {"rope_theta": 900.0} | parameters})
    yield Variant(
        "yarn_original_in_root",
        "llama",
        {"rope_parameters": {"rope_theta": 900.0} | ROPES["yarn"]},
        edits={"original_max_position_embeddings": 32},
    )


def features():
    for family in FAMILIES:
        yield Variant(family, family)
        yield Variant(f"{family}_tied", family, {"tie_word_embeddings": True}, recompute=True)
        yield Variant(f"{family}_pad", family, {"pad_token_id": 3})
        yield Variant(f"{family}_head_dim", family, {"head_dim": 6}, stored="float16")
        yield Variant(f"{family}_multihead", family, {"num_key_value_heads": 4}, files=3)
        # With a choice of experts rounding may change it, and nothing after it is comparable.
        every = {"num_experts_per_tok": 5} if "experts" in str(FAMILIES[family][1]) else {}
        yield Variant(f"{family}_bfloat16", family, every, stored="bfloat16", compute="bfloat16")
    yield Variant("llama_pad_from_end", "llama", {"pad_token_id": -1})
    yield Variant("llama_swish", "llama", {"hidden_act": "swish"})
    yield Variant("llama_attention_bias", "llama", {"attention_bias": True})
    yield Variant("llama_mlp_bias", "llama", {"mlp_bias": True}, recompute=True)
    yield Variant("qwen3_attention_bias", "qwen3", {"attention_bias": True})
    yield Variant("qwen3_moe_attention_bias", "qwen3_moe", {"attention_bias": True})
    yield Variant("llama_defaults", "llama", edits=dict.fromkeys(["head_dim", "rope_parameters"]))
    yield Variant(
        "mixtral_defaults",
        "mixtral",
        edits=dict.fromkeys(["rms_norm_eps", "rope_parameters", "head_dim"]),
    )


def windows():
    yield Variant("mistral_window", "mistral", {"sliding_window": 5})
    yield Variant("mistral_wide_window", "mistral", {"sliding_window": 40}, recompute=True)
    yield Variant("mistral_window_of_one", "mistral", {"sliding_window": 1})
    yield Variant("mistral_default_window", "mistral", edits={"sliding_window": None})
    yield Variant("mixtral_window", "mixtral", {"sliding_window": 5})
    yield Variant("qwen3_moe_window", "qwen3_moe", WINDOWED)
    for family in ("qwen2", "qwen3"):
        for first in (0, 2):
            yield Variant(
                f"{family}_window_from_{first}", family, WINDOWED | {"max_window_layers": first}
            )
        yield Variant(
            f"{family}_layer_types",
            family,
            WINDOWED
            | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        )
        yield Variant(f"{family}_window_unused", family, {"sliding_window": 5})
    yield Variant(
        "mistral_window_bfloat16",
        "mistral",
        {"sliding_window": 5},
        stored="bfloat16",
        compute="bfloat16",
    )


def mixtures():
    for family in ("qwen3_moe", "mixtral"):
        yield Variant(f"{family}_fused", family, fused=True, recompute=True)
        yield Variant(f"{family}_one_expert", family, {"num_experts_per_tok": 1})
        yield Variant(f"{family}_all_experts", family, {"num_experts_per_tok": 5})
        yield Variant(f"{family}_no_balance", family, {"router_aux_loss_coef": 0.0})
    # More experts than a document has tokens: some are never chosen.
    yield Variant("qwen3_moe_many_experts", "qwen3_moe", {"num_experts": 90}, recompute=True)
    yield Variant("qwen3_moe_normed", "qwen3_moe", {"norm_topk_prob": True})
    yield Variant("qwen3_moe_mlp_only", "qwen3_moe", {"mlp_only_layers": [1]})
    yield Variant("qwen3_moe_sparse_step", "qwen3_moe", {"decoder_sparse_step": 2})
    yield Variant(
        "qwen3_moe_old_name",
        "qwen3_moe",
        {"num_experts": 6},
        edits={"num_local_experts": None, "num_experts": 6},
    )


def all_variants():
    return [*features(), *ropes(), *windows(), *mixtures()]
