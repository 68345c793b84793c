#!/usr/bin/env python3
"""Reward models against transformers and PEFT: score_test.py --trainer PATH --assets DIR.

What a job writes is loaded by transformers (adapters: by PEFT) and gives the scores that the job's
last evaluation had: of a model that scored before, of a language model with a new head, of one
with tied embeddings in bfloat16, of adapters and of merged ones. A checkpoint is exported as the
same bytes, and trained on from as if nothing had been. The new head is the one that the seed says,
whatever the number of ranks.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import peft
import ranks
import torch
import transformers
from weights import read_safetensors

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}
STEPS = 4
SAVED_STEP = 2
LORA = {"lora_r": 4, "lora_dropout": 0.0}
CASES = [
    # model, ranks, dtype, peft
    ("llama_reward", 2, "float32", None),
    ("llama", 3, "float32", None),
    ("qwen3", 2, "bfloat16", None),
    ("llama_reward", 1, "float32", LORA),
    ("qwen2", 2, "float32", LORA | {"lora_modules_to_save": ["norm"]}),
    ("mistral", 2, "float32", LORA | {"quantization": "nf4", "merge_adapter": True}),
]


class ScoreError(Exception):
    """What came out otherwise than transformers has it."""


def expect(condition, message):
    if not condition:
        raise ScoreError(message)


def train(options, scratch, name, model, world, dtype, adapters, **training):
    """(events of rank 0, the final directory)."""
    spec = {
        "name": "score",
        "method": {"reward": {"max_length": 0}},
        "model": {
            "path": str(options.assets / "models" / model),
            "tokenizer": str(options.assets / "tokenizer"),
            "dtype": dtype,
        },
        "data": {
            "train": str(options.assets / "data" / "pairs.jsonl"),
            "eval": str(options.assets / "data" / "pairs_few.jsonl"),
            "cache_dir": str(scratch / "cache"),
        },
        "training": {
            "max_steps": STEPS,
            "per_device_train_batch_size": 12 // world,
            "per_device_eval_batch_size": 64,
            "learning_rate": 1e-3,
            "output_dir": str(scratch / name),
            "save_steps": SAVED_STEP,
        }
        | training,
        "parallelism": {"num_processes": world},
        "resources": {"device": "cpu", "cpu_threads": 1},
    }
    if adapters:
        spec["peft"] = adapters
    with tempfile.TemporaryDirectory() as job:
        events = ranks.run(options.trainer, spec, world, job)
    return events, pathlib.Path(events[-1]["finished"]["output"])


def load(directory, options, model, dtype, adapters):
    kind = transformers.AutoModelForSequenceClassification
    dtype = getattr(torch, dtype)
    if adapters is None or adapters.get("merge_adapter"):
        return kind.from_pretrained(directory, dtype=dtype)
    config = json.loads((directory / "adapter_config.json").read_text())
    expect(config["task_type"] == "SEQ_CLS", f"task_type is {config['task_type']}")
    expect(config["modules_to_save"][-2:] == ["classifier", "score"], config["modules_to_save"])
    base = kind.from_pretrained(
        options.assets / "models" / model, dtype=dtype, num_labels=1, pad_token_id=None
    )
    return peft.PeftModel.from_pretrained(base, directory)


def transformers_scores(model, directory, assets):
    """Of each pair, documents one by one."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    lines = (assets / "data" / "pairs_few.jsonl").read_text(encoding="utf-8").split("\n")
    scores = []
    for record in [json.loads(line) for line in lines if line]:
        for field in ("chosen", "rejected"):
            text = record[field]
            text += "" if text.endswith(tokenizer.eos_token) else tokenizer.eos_token
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            with torch.no_grad():
                scores.append(model(ids).logits.float())
    expect(scores[0].shape == (1, 1), f"logits of shape {tuple(scores[0].shape)}")
    return torch.cat(scores).double().view(-1, 2)


def check_scores(events, scores, dtype):
    metrics = [event["eval"] for event in events if "eval" in event][-1]
    ahead = scores[:, 0] - scores[:, 1]
    expected = {
        "min_reward": scores.min(),
        "mean_reward": scores.mean(),
        "max_reward": scores.max(),
        "margin": ahead.mean(),
        "accuracy": (ahead > 0).double().mean(),
        "loss": torch.nn.functional.softplus(-ahead).mean(),
    }
    scale = scores.abs().max().item()
    for name, value in expected.items():
        got = ranks.metric(metrics, name)
        error = abs(got - value.item()) / (1 if name in ("loss", "accuracy") else scale)
        if name == "accuracy" and dtype == "bfloat16":
            continue  # a pair may be nearly even
        expect(error <= TOLERANCE[dtype], f"{name} is {got!r}, transformers has {value.item()!r}")


def check_config(directory, model):
    config = json.loads((directory / "config.json").read_text())
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    architecture = f"{name[config['model_type']]}ForSequenceClassification"
    expect(config["architectures"] == [architecture], config["architectures"])
    expect(config["id2label"] == {"0": "LABEL_0"}, config["id2label"])
    expect(config["label2id"] == {"LABEL_0": 0}, config["label2id"])
    expect(not (directory / "generation_config.json").exists(), f"{model} does not generate")


def files_of(directory):
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.is_file()}


def check_export(options, scratch, directory):
    exported = scratch / "exported"
    checkpoint = directory.parent / f"checkpoint-{STEPS}"
    subprocess.run(
        [options.trainer, "--export", checkpoint, "--to", exported],
        check=True,
        timeout=ranks.TIMEOUT_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    got, want = files_of(exported), files_of(directory)
    expect(got.keys() == want.keys(), f"exported {sorted(got)}, not {sorted(want)}")
    differing = [name for name in want if got[name] != want[name]]
    expect(not differing, f"of the export {differing} differ")


def check_resume(options, scratch, model, world, dtype, adapters, directory):
    checkpoint = directory.parent / f"checkpoint-{SAVED_STEP}"
    _, resumed = train(
        options,
        scratch,
        "resumed",
        model,
        world,
        dtype,
        adapters,
        resume_from_checkpoint=str(checkpoint),
    )
    expect(files_of(resumed) == files_of(directory), "a resumed run ends with other bytes")


def check(options, scratch, model, world, dtype, adapters):
    job = (model, world, dtype, adapters)
    events, directory = train(options, scratch, "output", *job)
    scored = load(directory, options, model, dtype, adapters).eval()
    check_scores(events, transformers_scores(scored, directory, options.assets), dtype)
    if (directory / "config.json").exists():
        check_config(directory, model)
    if not (adapters or {}).get("merge_adapter"):
        check_export(options, scratch, directory)
    check_resume(options, scratch, *job, directory)


def check_new_head(options, scratch):
    """A rate of 0 leaves it as it began."""
    heads = []
    for world in (1, 3):
        _, directory = train(
            options, scratch, f"world{world}", "llama", world, "float32", None, learning_rate=0
        )
        tensors = dict(read_safetensors(directory / "model.safetensors"))
        expect("lm_head.weight" not in tensors, "the output matrix is saved")
        heads.append(tensors["score.weight"])
    expect((heads[0] == heads[1]).all(), "the new head depends on the number of ranks")
    expect(heads[0].shape == (1, 64), f"the new head has shape {heads[0].shape}")
    # 64 draws of a standard deviation of 0.02, transformers' initializer_range.
    expect(0.014 < heads[0].std() < 0.026, f"the new head deviates by {heads[0].std()}")
    _, directory = train(
        options, scratch, "seed", "llama", 1, "float32", None, learning_rate=0, seed=7
    )
    other = dict(read_safetensors(directory / "model.safetensors"))["score.weight"]
    expect(not (heads[0] == other).any(), "another seed draws the same head")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    options.assets = options.assets.resolve()
    good = True
    jobs = [(f"{job[0]}, {job[1:]}", check, job) for job in CASES]
    for name, run, job in [*jobs, ("new head", check_new_head, ())]:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                run(options, pathlib.Path(scratch), *job)
                print(f"ok: {name}", flush=True)
            except (ScoreError, ranks.RunError, subprocess.SubprocessError) as error:
                print(f"FAILED: {name}: {error}", flush=True)
                good = False
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
