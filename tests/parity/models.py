"""Tiny models of each family, as Hugging Face directories."""

import json
import zlib

import numpy as np
from bpe import VOCAB_SIZE
from draws import uniform
from files import write_json

SHARED = {
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": VOCAB_SIZE - 2,
    "pad_token_id": VOCAB_SIZE - 3,
    "use_cache": True,
}
LLAMA = SHARED | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "mlp_bias": False}
QWEN3 = SHARED | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "use_sliding_window": False,
}
QWEN2 = SHARED | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "use_sliding_window": False,
}
MISTRAL = SHARED | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN3_MOE = QWEN3 | {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
MIXTRAL = SHARED | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
# Sizes are such that little divides by two, three or four ranks.
MIXTURES = ["mixtral", "qwen3_moe"]
MODELS = {
    "llama": LLAMA
    | {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 116,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    },
    "llama_tied": LLAMA
    | {
        "vocab_size": 805,
        "hidden_size": 48,
        "intermediate_size": 100,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
    "llama_bias": LLAMA
    | {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 40,
        "intermediate_size": 72,
        "num_hidden_layers": 2,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
        "dtype": "float32",
    },
    "qwen3": QWEN3
    | {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "dtype": "float32",
    },
    "qwen3_untied": QWEN3
    | {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 54,
        "intermediate_size": 90,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 20,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "dtype": "float32",
    },
    "qwen2": QWEN2
    | {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 60,
        "intermediate_size": 92,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "dtype": "float32",
    },
    # Most documents are longer than the window.
    "mistral": MISTRAL
    | {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 56,
        "intermediate_size": 88,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 16,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_theta": 10000.0,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 256,
        },
        "tie_word_embeddings": False,
        "dtype": "float32",
    },
    # Experts on every second layer.
    "qwen3_moe": QWEN3_MOE
    | {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 48,
        "intermediate_size": 76,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 12,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 36,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "router_aux_loss_coef": 0.01,
        "output_router_logits": False,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "dtype": "float32",
    },
    "mixtral": MIXTRAL
    | {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 44,
        "intermediate_size": 52,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.02,
        "output_router_logits": False,
        "sliding_window": None,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        "tie_word_embeddings": False,
        "dtype": "float32",
    },
}
REWARD = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
MODELS |= {
    "llama_reward": MODELS["llama"]
    | REWARD
    | {"architectures": ["LlamaForSequenceClassification"], "num_hidden_layers": 2},
    # The one matrix that was tied to another has no use for it any more.
    "qwen2_reward": MODELS["qwen2"]
    | REWARD
    | {"architectures": ["Qwen2ForSequenceClassification"]},
    "llama_teacher": MODELS["llama"]
    | {"hidden_size": 40, "intermediate_size": 84, "num_hidden_layers": 2, "head_dim": 10},
}
NUM_FILES = {"qwen3_untied": 2}


def feed_forward_shapes(config, layer):
    prefix, hidden = f"model.layers.{layer}.mlp.", config["hidden_size"]
    gate, up, down = "gate_proj", "up_proj", "down_proj"

    def matrices(prefix, ffn):
        return {
            f"{prefix}{gate}.weight": (ffn, hidden),
            f"{prefix}{up}.weight": (ffn, hidden),
            f"{prefix}{down}.weight": (hidden, ffn),
        }

    if config["model_type"] == "mixtral":
        prefix, gate, up, down = f"model.layers.{layer}.block_sparse_moe.", "w1", "w3", "w2"
        shapes = {prefix + "gate.weight": (config["num_local_experts"], hidden)}
        for expert in range(config["num_local_experts"]):
            shapes |= matrices(f"{prefix}experts.{expert}.", config["intermediate_size"])
        return shapes
    if "num_experts" not in config or (layer + 1) % config["decoder_sparse_step"] != 0:
        return matrices(prefix, config["intermediate_size"])
    shapes = {prefix + "gate.weight": (config["num_experts"], hidden)}
    for expert in range(config["num_experts"]):
        shapes |= matrices(f"{prefix}experts.{expert}.", config["moe_intermediate_size"])
    return shapes


def tensor_shapes(config):
    hidden, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    query, key = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (query, hidden),
            prefix + "self_attn.k_proj.weight": (key, hidden),
            prefix + "self_attn.v_proj.weight": (key, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, query),
        }
        shapes |= feed_forward_shapes(config, layer)
        biases = {"q": query, "k": key, "v": key, "o": hidden}
        if config["model_type"] == "qwen2":
            del biases["o"]
        if config["attention_bias"] or config["model_type"] == "qwen2":
            shapes |= {
                prefix + f"self_attn.{part}_proj.bias": (size,) for part, size in biases.items()
            }
        if config.get("mlp_bias"):
            shapes |= {
                prefix + f"mlp.{part}_proj.bias": (size,)
                for part, size in {"gate": ffn, "up": ffn, "down": hidden}.items()
            }
        if config["model_type"].startswith("qwen3"):
            shapes |= {
                prefix + "self_attn.q_norm.weight": (head_dim,),
                prefix + "self_attn.k_norm.weight": (head_dim,),
            }
    shapes["model.norm.weight"] = (hidden,)
    if config["architectures"][0].endswith("ForSequenceClassification"):
        shapes["score.weight"] = (len(config["id2label"]), hidden)
    elif not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def make_tensor(model, name, shape):
    values = uniform(zlib.crc32(f"{model}/{name}".encode()), int(np.prod(shape))).reshape(shape)
    if name.endswith("norm.weight"):
        return np.float32(1) + np.float32(0.25) * values  # not 1, so that a norm left out shows
    return np.float32(0.125) * values


def to_bytes(values, bfloat16):
    if bfloat16:  # cut off
        return (values.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes()
    return values.astype("<f4").tobytes()


def write_safetensors(path, tensors, bfloat16):
    header, offset, bodies = {}, 0, []
    for name, values in tensors.items():
        body = to_bytes(values, bfloat16)
        header[name] = {
            "dtype": "BF16" if bfloat16 else "F32",
            "shape": list(values.shape),
            "data_offsets": [offset, offset + len(body)],
        }
        offset += len(body)
        bodies.append(body)
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(bodies))


def write_model(directory, name, config):
    write_json(directory / "config.json", config)
    tensors = {
        tensor: make_tensor(name, tensor, shape) for tensor, shape in tensor_shapes(config).items()
    }
    bfloat16 = config.get("dtype") == "bfloat16"
    num_files = NUM_FILES.get(name, 1)
    if num_files == 1:
        write_safetensors(directory / "model.safetensors", tensors, bfloat16)
        return
    weight_map = {}
    for i in range(num_files):
        file = f"model-{i + 1:05d}-of-{num_files:05d}.safetensors"
        part = {
            tensor: values
            for j, (tensor, values) in enumerate(tensors.items())
            if j * num_files // len(tensors) == i
        }
        write_safetensors(directory / file, part, bfloat16)
        weight_map |= dict.fromkeys(part, file)
    total = sum(values.nbytes for values in tensors.values())
    write_json(
        directory / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": weight_map},
    )
