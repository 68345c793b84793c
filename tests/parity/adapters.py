"""The adapters that LoRA cases begin with, as PEFT reads them: from hashes, like the models.

Both matrices are there, so that the first step already has gradients of both.
"""

import json
import zlib

import numpy as np
from draws import uniform
from files import write_json
from models import write_safetensors
from weights import read_safetensors

DEFAULT_TARGETS = ["q_proj", "v_proj"]
B_SIZE = 0.05
# Lengths of rows begin this near those of the weights' rows.
MAGNITUDE_SPREAD = 0.05
NAMES = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "target_modules",
    "lora_modules_to_save": "modules_to_save",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
}


def fits(module, targets):
    """As PEFT takes target modules; all-linear: every matrix of a block, experts' routers too."""
    if targets == ["all-linear"]:
        return ".layers." in module and not module.endswith("norm")
    return any(module == target or module.endswith(f".{target}") for target in targets)


def stored_weights(model):
    """The tensors of a model's directory, by name."""
    return {
        name: values
        for file in sorted(model.glob("*.safetensors"))
        for name, values in read_safetensors(file)
    }


def draw(name, shape, size):
    seed = zlib.crc32(name.encode())
    return uniform(seed, int(np.prod(shape))).reshape(shape) * np.float32(size)


def adapter_tensors(model, peft):
    targets = peft.get("lora_target_modules", DEFAULT_TARGETS)
    # A model that scores documents trains its score whole.
    saved = [*peft.get("lora_modules_to_save", []), "score"]
    rank = peft["lora_r"]
    tensors = {}
    for name, values in stored_weights(model).items():
        module = name.removesuffix(".weight").removesuffix(".bias")
        if any(module.endswith(end) for end in saved):
            tensors[f"base_model.model.{name}"] = values.astype(np.float32)
        elif values.ndim == 2 and fits(module, targets):
            prefix = f"base_model.model.{module}."
            out, width = values.shape
            a, b = f"{prefix}lora_A.weight", f"{prefix}lora_B.weight"
            tensors[a] = draw(a, (rank, width), 1 / np.sqrt(width))
            tensors[b] = draw(b, (out, rank), B_SIZE)
            if peft.get("use_dora"):
                magnitude = f"{prefix}lora_magnitude_vector"
                lengths = np.linalg.norm(values, axis=1).astype(np.float32)
                tensors[magnitude] = lengths * (1 + draw(magnitude, (out,), MAGNITUDE_SPREAD))
    return tensors


def task_of(model):
    """PEFT trains the score of a model that scores documents whole, unasked."""
    architecture = json.loads((model / "config.json").read_text())["architectures"][0]
    return "SEQ_CLS" if architecture.endswith("ForSequenceClassification") else "CAUSAL_LM"


def adapter_config(model, peft):
    return {
        "peft_type": "LORA",
        "task_type": task_of(model),
        "base_model_name_or_path": str(model),
        "bias": "none",
        "target_modules": DEFAULT_TARGETS,
    } | {theirs: peft[ours] for ours, theirs in NAMES.items() if ours in peft}


def write_adapter(directory, model, peft, tensors=None):
    """`peft` has the names of job files."""
    config = adapter_config(model, peft)
    if config["target_modules"] == ["all-linear"]:
        config["target_modules"] = "all-linear"
    write_json(directory / "adapter_config.json", config)
    write_safetensors(
        directory / "adapter_model.safetensors", tensors or adapter_tensors(model, peft), False
    )
