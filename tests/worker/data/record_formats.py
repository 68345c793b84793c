"""Writes fixtures/formats.json: tokens and labels that TRL's SFTTrainer makes of format_cases.py.

Run by hand, in an environment with TRL (tests/parity/requirements.txt), when a case changes.
"""

import json
import os
import pathlib
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import datasets
import format_cases
import transformers
import trl


def make_model(vocab_size):
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
        )
    )


def prepare(case, folder):
    path = format_cases.write(case, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tokenizer")
    config = trl.SFTConfig(
        output_dir=str(folder / "out"),
        use_cpu=True,
        bf16=False,
        report_to="none",
        disable_tqdm=True,
        **format_cases.options(case, folder),
    )
    trainer = trl.SFTTrainer(
        model=make_model(len(tokenizer)),
        args=config,
        train_dataset=datasets.load_dataset(
            "json", data_files=str(path), split="train", cache_dir=str(folder / "cache")
        ),
        processing_class=tokenizer,
    )
    return [
        [row["input_ids"], [int(label != -100) for label in row["labels"]]]
        for row in trainer.train_dataset
    ]


def main():
    lines = []
    for name, case in format_cases.FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            rows = prepare(case, pathlib.Path(folder))
        assert rows, name
        lines.append(f"{json.dumps(name)}: {json.dumps(rows, separators=(',', ':'))}")
        print(f"{name}: {len(rows)} rows", flush=True)
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (format_cases.FIXTURES / "formats.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
