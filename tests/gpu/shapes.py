"""Models of random weights in the shapes that are trained in earnest, and what their work is."""

import dataclasses
import json
import pathlib
import shutil

# Documents of the assets are repeated so often that no run comes to their end.
MIN_TOKENS, MIN_TOKENS_SMALL = 2_000_000, 20_000
BYTES_PER_TOKEN = 2  # at least


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    width: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    tied: bool = False

    @property
    def layer_weights(self) -> int:
        """Of the matrices of a layer."""
        attention = self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.width * self.feed_forward

    @property
    def weights(self) -> int:
        """Of all matrices that a token is multiplied with."""
        return self.layers * self.layer_weights + self.width * self.vocabulary

    def train_flops(self, row: int, *, frozen: bool = False) -> int:
        """Of a token in a row of so many, forward and backward: what the model asks for, without
        what is computed again. frozen: no gradients of the weights."""
        passes = 4 if frozen else 6
        # Two products of causal attention, of half the row each on average; thrice with backward.
        return passes * self.weights + 3 * self.layers * 2 * row * self.heads * self.head_width


LLAMA_1B = Shape("llama-1b", 2048, 8192, 16, 32, 8, 64, 128256, tied=True)
LLAMA_8B = Shape("llama-8b", 4096, 14336, 32, 32, 8, 128, 128256)
MEDIUM = Shape("medium", 1024, 2816, 4, 16, 8, 64, 16384)
TINY = Shape("tiny", 64, 128, 2, 4, 2, 16, 1024)


def config_of(shape: Shape) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": shape.width,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": shape.tied,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "torch_dtype": "bfloat16",
    }


def layer_shapes(shape: Shape, prefix: str) -> dict[str, tuple[int, ...]]:
    heads, kv_heads = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    return {
        f"{prefix}.self_attn.q_proj.weight": (heads, shape.width),
        f"{prefix}.self_attn.k_proj.weight": (kv_heads, shape.width),
        f"{prefix}.self_attn.v_proj.weight": (kv_heads, shape.width),
        f"{prefix}.self_attn.o_proj.weight": (shape.width, heads),
        f"{prefix}.mlp.gate_proj.weight": (shape.feed_forward, shape.width),
        f"{prefix}.mlp.up_proj.weight": (shape.feed_forward, shape.width),
        f"{prefix}.mlp.down_proj.weight": (shape.width, shape.feed_forward),
        f"{prefix}.input_layernorm.weight": (shape.width,),
        f"{prefix}.post_attention_layernorm.weight": (shape.width,),
    }


def write_model(directory: pathlib.Path, shape: Shape, tokenizer: pathlib.Path) -> None:
    """A Hugging Face directory of bfloat16 weights, a file a layer."""
    import torch
    from safetensors.torch import save_file

    unfinished = directory.with_name(directory.name + ".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(tokenizer, unfinished)
    files = [layer_shapes(shape, f"model.layers.{i}") for i in range(shape.layers)]
    outer = {
        "model.embed_tokens.weight": (shape.vocabulary, shape.width),
        "model.norm.weight": (shape.width,),
    }
    if not shape.tied:
        outer["lm_head.weight"] = (shape.vocabulary, shape.width)
    draws_on = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device=draws_on).manual_seed(0)
    weight_map = {}
    for number, shapes in enumerate([outer, *files]):
        tensors = {}
        for name, size in shapes.items():
            if len(size) == 1:
                tensors[name] = torch.ones(size, dtype=torch.bfloat16)
                continue
            drawn = torch.randn(size, generator=generator, device=draws_on, dtype=torch.bfloat16)
            tensors[name] = drawn.mul_(0.02).cpu()
        file = f"model-{number:05}.safetensors"
        save_file(tensors, unfinished / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (unfinished / "model.safetensors.index.json").write_text(json.dumps(index))
    (unfinished / "config.json").write_text(json.dumps(config_of(shape)))
    unfinished.rename(directory)


def write_documents(path: pathlib.Path, source: pathlib.Path, small: bool) -> None:
    text = source.read_text(encoding="utf-8")
    wanted = MIN_TOKENS_SMALL if small else MIN_TOKENS
    size = len(text.encode()) // BYTES_PER_TOKEN
    path.write_text(text * (wanted // max(1, size // 4) + 1), encoding="utf-8")
