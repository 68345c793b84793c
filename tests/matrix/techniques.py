"""The memory techniques: what a job file says to have each of them.

Of an axis at most one is on. A technique that `defines` changes what is computed (which documents a
step sees, what is trained, how a state is rounded): the run it is compared with has it, too. All
others must leave losses, gradients, metrics and weights as they are. `{method}` in the path of a
field is the method's name in the job file; a method without that field cannot have the technique.
"""

from dataclasses import dataclass, field

# Relative, of a step's loss and gradient norm.
EXACT = 1e-5
# Of the rehearsed peak, for each owner, as a share of the peak.
PEAK_EXACT = 0.005


MODELS = ("llama", "qwen3")
WORLDS = (1, 2)
# Of techniques that are an axis of the mesh: alone, and beside two shards.
MESH_WORLDS = (2, 4)


@dataclass(frozen=True, eq=False)
class Technique:
    axis: str
    name: str
    fields: dict  # of the job file, by path
    defines: bool = False
    defines_for: tuple = ()  # kinds of methods for which it does
    needs: dict = field(default_factory=dict)  # what both runs must have for it
    # Where rounding turns small differences of order into larger ones.
    tolerance: float = EXACT
    worlds: tuple = WORLDS  # that it is run at
    # It makes other microbatches: so are means over their tokens, and the largest of their rows.
    regroups: bool = False

    def fields_of(self, kind):
        return {path.format(method=kind): value for path, value in self.fields.items()}

    def is_defining(self, kind):
        return self.defines or kind in self.defines_for


def lora(**options):
    return {
        "peft.lora_r": 4,
        "peft.lora_dropout": 0,
        "peft.lora_target_modules": ["q_proj", "v_proj", "down_proj"],
    } | {f"peft.{name}": value for name, value in options.items()}


ADAPTERS = [
    Technique("weights", "lora", lora(), defines=True),
    Technique("weights", "rslora", lora(use_rslora=True), defines=True),
    Technique("weights", "dora", lora(use_dora=True), defines=True),
    Technique(
        "weights", "modules-to-save", lora(lora_modules_to_save=["embed_tokens"]), defines=True
    ),
    Technique("weights", "qlora-nf4", lora(quantization="nf4"), defines=True),
    Technique(
        "weights",
        "qlora-nf4-nested",
        lora(quantization="nf4", use_bnb_nested_quant=True),
        defines=True,
    ),
    Technique("weights", "qlora-int8", lora(quantization="int8"), defines=True),
]

TECHNIQUES = [
    Technique("length", "truncation", {"method.{method}.max_length": 40}, defines=True),
    *(
        Technique(
            "packing",
            f"packing-{strategy}",
            {"method.{method}.packing": True, "method.{method}.packing_strategy": strategy},
            defines=True,
        )
        for strategy in ("bfd", "bfd_split", "wrapped")
    ),
    Technique("padding-free", "padding-free", {"method.{method}.padding_free": True}),
    Technique("pad", "pad-to-multiple", {"method.{method}.pad_to_multiple_of": 16}),
    # KTO exchanges the completions of a microbatch, and has means over its desirable rows; PPO over
    # its tokens.
    Technique(
        "accumulation",
        "accumulation",
        {"training.gradient_accumulation_steps": 2},
        defines_for=("kto", "ppo"),
        regroups=True,
    ),
    Technique(
        "recompute",
        "recompute-attention",
        {
            "memory.gradient_checkpointing": True,
            "memory.gradient_checkpointing_policy": "attention",
        },
    ),
    Technique(
        "recompute",
        "recompute-full",
        {"memory.gradient_checkpointing": True, "memory.gradient_checkpointing_policy": "full"},
    ),
    Technique(
        "recompute",
        "recompute-every-2nd",
        {"memory.gradient_checkpointing": True, "memory.gradient_checkpointing_every": 2},
    ),
    Technique("offload", "offload-host", {"memory.activation_offloading": True}),
    Technique(
        "offload",
        "offload-disk",
        {"memory.activation_offloading": True, "memory.activation_offloading_target": "disk"},
    ),
    Technique(
        "offload",
        "offload-bounded",
        {
            "memory.activation_offloading": True,
            "memory.activation_offloading_min_bytes": 4096,
            "memory.activation_offloading_max_bytes": 65536,
        },
    ),
    Technique("tile", "mlp-tile", {"memory.mlp_tile_tokens": 16}),
    Technique("head", "head-chunk", {"memory.head_chunk_tokens": 24}),
    Technique("head", "head-chunk-auto", {"memory.head_chunk_tokens": 0}),
    Technique("sharding", "zero1", {"memory.sharding": "zero1"}),
    Technique("sharding", "zero2", {"memory.sharding": "zero2"}),
    Technique("sharding", "no-reshard", {"memory.reshard_after_forward": False}),
    Technique("sharding", "reshard-keeps-last", {"memory.reshard_keeps_last": 1}),
    Technique(
        "states",
        "states-bf16",
        {"memory.optimizer_state_dtype": "bfloat16"},
        defines=True,
        tolerance=1e-3,
    ),
    Technique(
        "states",
        "states-int8",
        {"memory.optimizer_state_dtype": "int8"},
        defines=True,
        tolerance=1e-3,
    ),
    Technique(
        "update",
        "optimizer-in-backward",
        {"memory.optimizer_in_backward": True},
        needs={"training.max_grad_norm": 0},
    ),
    Technique("optimizer", "offload-optimizer", {"memory.offload_optimizer_device": "cpu"}),
    Technique("parameters", "offload-parameters", {"memory.offload_param_device": "cpu"}),
    Technique("dtype", "bf16", {"model.dtype": "bfloat16"}, defines=True, tolerance=2e-2),
    *ADAPTERS,
    *(
        Technique(
            "mesh",
            f"cp-{strategy}",
            {"parallelism.cp_size": 2, "parallelism.cp_strategy": strategy},
            worlds=MESH_WORLDS,
        )
        for strategy in ("allgather", "ring", "ulysses")
    ),
    Technique("mesh", "hsdp", {"parallelism.dp_replicate_size": 2}, worlds=MESH_WORLDS),
]
