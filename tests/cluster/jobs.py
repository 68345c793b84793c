"""Jobs on the models and documents of tests/parity."""

import hashlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "parity"))

import models
from files import write_json


def sft_job(assets, output_dir, ranks=1, **training):
    """A short SFT job, in the nesting of a job file."""
    return {
        "name": "cluster-test",
        "method": {"sft": {"max_length": 64}},
        "model": {"path": f"{assets}/models/qwen3", "tokenizer": f"{assets}/tokenizer"},
        "data": {"train": f"{assets}/data/short.jsonl"},
        "training": {
            "max_steps": 4,
            "per_device_train_batch_size": 2,
            "learning_rate": 1e-3,
            "output_dir": str(output_dir),
        }
        | training,
        "parallelism": {"num_processes": ranks},
    }


def write_llama(directory, hidden, ffn, layers):
    """A Llama of a chosen size; returns its number of parameters."""
    config = models.MODELS["llama"] | {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": hidden // 64,
        "head_dim": 32,
    }
    models.write_model(directory, directory.name, config)
    return sum(
        int(models.np.prod(shape, dtype=int)) for shape in models.tensor_shapes(config).values()
    )


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


__all__ = ["sft_job", "sha256", "write_json", "write_llama"]
