"""Writes a Qwen3-shaped model of about 26M parameters with seeded random weights.

make_model.py MODEL_DIR      the directory already holds the tokenizer
"""

import pathlib
import sys

import torch
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

SEED = 42


def make_config(tokenizer: Tokenizer) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=4096,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
        pad_token_id=tokenizer.token_to_id("<|endoftext|>"),
        bos_token_id=None,
    )


def main() -> None:
    directory = pathlib.Path(sys.argv[1])
    config = make_config(Tokenizer.from_file(str(directory / "tokenizer.json")))
    torch.manual_seed(SEED)
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(directory)
    print(f"{directory}: {sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")


if __name__ == "__main__":
    main()
