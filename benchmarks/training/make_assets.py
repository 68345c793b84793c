"""Writes what the benchmarks train: a Llama with seeded random weights, a tokenizer of 2,048
tokens, and documents of uneven length: by themselves, as pairs to prefer one of, and with labels.

    make_assets.py CORPUS.jsonl OUT_DIR [--size tiny|25m|100m]
        writes OUT_DIR/model, and OUT_DIR/{documents,pairs,labelled}.jsonl
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
# The tokenizer's tokens are the first of a model's.
SIZES = {
    "tiny": {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    },
    "25m": {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 512,
        "intermediate_size": 1152,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
    },
    "100m": {
        "vocab_size": 4 * VOCAB_SIZE,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    },
}


def make_model(size: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES[size],
        tie_word_embeddings=False,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def write(path: pathlib.Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def split(text: str) -> tuple[str, str]:
    """A prompt of a third of the words, and what follows."""
    words = text.split(" ")
    begin = max(1, len(words) // 3)
    return " ".join(words[:begin]), " " + " ".join(words[begin:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--size", choices=SIZES, default="25m")
    options = parser.parse_args()
    texts = list(make_tokenizer.read_texts(options.corpus))

    model_dir = options.out / "model"
    model_dir.mkdir(parents=True, exist_ok=True)
    make_tokenizer.save(make_tokenizer.train_tokenizer(iter(texts), VOCAB_SIZE), model_dir)
    make_model(options.size).save_pretrained(model_dir)

    texts = texts[:NUM_DOCUMENTS]
    write(options.out / "documents.jsonl", [{"text": text} for text in texts])
    parts = [split(text) for text in texts]
    # Another document's end is the worse one.
    ends = [end for _, end in parts[1:] + parts[:1]]
    pairs = [
        {"prompt": prompt, "chosen": end, "rejected": other}
        for (prompt, end), other in zip(parts, ends, strict=True)
    ]
    write(options.out / "pairs.jsonl", pairs)
    labelled = [
        {
            "prompt": pair["prompt"],
            "completion": pair["chosen" if i % 2 == 0 else "rejected"],
            "label": i % 2 == 0,
        }
        for i, pair in enumerate(pairs)
    ]
    write(options.out / "labelled.jsonl", labelled)


if __name__ == "__main__":
    main()
