"""Writes what the GRPO example trains on: sums of two digits, and a small model of random weights.

make_assets.py DIRECTORY     writes model/, format.jsonl and sums.jsonl

format.jsonl is for supervised fine-tuning: it shows how an answer is written, "[12]", and next to
nothing of which answer is right. sums.jsonl holds the prompts of GRPO, with the right answers that
the reward compares with.
"""

import json
import pathlib
import random
import sys

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen3Config, Qwen3ForCausalLM

SEED = 7
LETTERS = "0123456789+=[]"
PAD, END = "<pad>", "<end>"
LARGEST = 4
NUM_SHOWN = 20_000
RIGHT_SHARE = 0.06  # of the answers that are shown; the others are drawn evenly


def write_tokenizer(directory: pathlib.Path) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate([*LETTERS, PAD, END])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([PAD, END])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer


def write_model(directory: pathlib.Path, tokenizer: Tokenizer) -> None:
    torch.manual_seed(SEED)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
        pad_token_id=tokenizer.token_to_id(PAD),
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)


def write_lines(path: pathlib.Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def main() -> None:
    directory = pathlib.Path(sys.argv[1])
    model = directory / "model"
    model.mkdir(parents=True, exist_ok=True)
    write_model(model, write_tokenizer(model))
    draws = random.Random(SEED)
    sums = [(a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    shown = []
    for _ in range(NUM_SHOWN):
        a, b = draws.choice(sums)
        answer = a + b if draws.random() < RIGHT_SHARE else draws.randint(0, 2 * LARGEST)
        shown.append({"prompt": f"{a}+{b}=", "completion": f"[{answer}]"})
    write_lines(directory / "format.jsonl", shown)
    write_lines(
        directory / "sums.jsonl",
        [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a, b in sums],
    )


if __name__ == "__main__":
    main()
