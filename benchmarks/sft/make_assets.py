"""Writes what the benchmark trains: a Llama of 25M parameters with seeded random weights, a
tokenizer of 2,048 tokens, and documents of uneven length.

    make_assets.py CORPUS.jsonl OUT_DIR      writes OUT_DIR/model and OUT_DIR/documents.jsonl
"""

import argparse
import json
import pathlib
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples/demo"))
import make_tokenizer  # noqa: E402

VOCAB_SIZE = 2048
NUM_DOCUMENTS = 2000


def make_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=512,
        intermediate_size=1152,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=False,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    options = parser.parse_args()
    texts = list(make_tokenizer.read_texts(options.corpus))

    model_dir = options.out / "model"
    model_dir.mkdir(parents=True, exist_ok=True)
    make_tokenizer.save(make_tokenizer.train_tokenizer(iter(texts), VOCAB_SIZE), model_dir)
    make_model().save_pretrained(model_dir)

    lines = [json.dumps({"text": text}) + "\n" for text in texts[:NUM_DOCUMENTS]]
    (options.out / "documents.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
