#!/usr/bin/env python3
"""What is saved is loaded and saved again as the same bytes, and as transformers would save it.

    stable_export_test.py --trainer PATH --assets DIR

transformers saves a model, in one file and in several, in float32, bfloat16 and float16. A job of
no steps loads it and writes its final directory: every file that transformers wrote comes out with
the same bytes where the dtype is the same, and a second time where it is not. A checkpoint is
exported (--export) as the same bytes as the final directory, and in the type that transformers
stored as what it wrote.
"""

import json
import pathlib
import subprocess
import tempfile

import ranks
import torch
import transformers
import trials
from trials import Trials, expect, files_of, final_directory

CASES = [
    # model, dtype on disk, dtype of the job, in several files
    ("qwen3", "float32", "float32", False),
    ("qwen3_untied", "bfloat16", "bfloat16", True),
    ("llama", "float16", "float32", False),
    ("llama_tied", "float32", "bfloat16", False),
]


def compare(got, want, what):
    expect(got.keys() == want.keys(), f"{what}: files {sorted(got)}, not {sorted(want)}")
    differing = [name for name in want if got[name] != want[name]]
    expect(not differing, f"{what}: {differing} differ")


def save_with_transformers(assets, name, dtype, sharded, directory):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        assets / "models" / name, dtype=getattr(torch, dtype)
    )
    model.save_pretrained(directory, **({"max_shard_size": "50KB"} if sharded else {}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(assets / "tokenizer")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(directory)
    (directory / "not-ours.txt").write_text("stays behind")


def train(options, source, output, dtype):
    """The final directory of a run that changes no weight: its rate is 0."""
    spec = trials.make_spec(
        options,
        output,
        2,
        train="few",
        fields={"model": {"path": str(source), "dtype": dtype}, "method.sft.max_length": 32},
        max_steps=1,
        learning_rate=0,
        save_steps=1,
    )
    return final_directory(trials.train(options, spec))


def export(options, checkpoint, directory, *flags):
    subprocess.run(
        [options.trainer, "--export", checkpoint, "--to", directory, *flags],
        check=True,
        timeout=ranks.TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    return files_of(directory)


def check(options, scratch, name, stored, dtype, sharded):
    source = scratch / "source"
    save_with_transformers(options.assets, name, stored, sharded, source)
    original = files_of(source)
    expect(("model.safetensors.index.json" in original) == sharded, f"{sorted(original)}")
    del original["not-ours.txt"]
    first = train(options, source, scratch / "first", dtype)
    saved = files_of(first)
    weights = {key for key in saved if key.startswith("model")}
    if not sharded and stored == dtype:
        compare(saved, original, "saved by transformers, then by us")
    for key in saved.keys() - weights - ({"config.json"} if stored != dtype else set()):
        expect(saved[key] == original[key], f"{key} was changed")
    expect(saved.keys() - weights == {key for key in original if not key.startswith("model")}, "")
    config = json.loads(saved["config.json"])
    expect(config["dtype"] == dtype, f"config.json says {config['dtype']}")
    second = train(options, first, scratch / "second", dtype)
    compare(files_of(second), saved, "saved, loaded and saved again")
    exported = export(options, scratch / "first" / "checkpoint-1", scratch / "exported")
    compare(exported, saved, "exported from the checkpoint")
    if not sharded:
        exported = export(options, scratch / "first", scratch / "stored", "--dtype", stored)
        compare(exported, original, "exported in the type it came in")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(first, dtype="auto")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        source, dtype=getattr(torch, dtype)
    )
    ids = torch.arange(20)[None]
    with torch.no_grad():
        expect(torch.equal(loaded(ids).logits, reference(ids).logits), "the logits differ")
    return f"{len(saved)} files"


def main():
    options = trials.parse(__doc__)
    checks = Trials()
    for name, stored, dtype, sharded in CASES:
        what = f"{name}, {stored} as {dtype}, {'several files' if sharded else 'one file'}"
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            checks.attempt(what, check, options, scratch, name, stored, dtype, sharded)
    checks.finish()


if __name__ == "__main__":
    main()
