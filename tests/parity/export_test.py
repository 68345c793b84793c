#!/usr/bin/env python3
"""Trains a small job and loads its final directory with transformers: the loss has to be ours.

    export_test.py --trainer PATH --assets DIR --world N MODEL ...

MODEL is a model of --assets. The held-out loss that the trainer reports at the end is compared with
the one that transformers computes from output_dir/final: weights, config and tokenizer.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import ranks
import torch
import transformers
from cases import Case
from models import MIXTURES
from parity_test import complete
from weights import relative_error

TOLERANCE = 1e-5
MAX_LENGTH = 96


def train(trainer, assets, model, world, scratch):
    """Returns (the last held-out metrics, the final directory)."""
    case = Case(sft={"max_length": MAX_LENGTH, "packing": True}, training={"max_steps": 4})
    spec = {
        # The loss of an evaluation counts the balance of experts too, which the rest here does not.
        "method": {
            "sft": case.sft_options() | ({"router_aux_loss_coef": 0} if model in MIXTURES else {})
        },
        "model": {
            "path": str(assets / "models" / model),
            "tokenizer": str(assets / "tokenizer"),
        },
        "data": {
            "train": str(assets / "data" / "mixed.jsonl"),
            "eval": str(assets / "data" / "eval.jsonl"),
        },
        "training": case.training_options()
        | {"per_device_train_batch_size": 3, "per_device_eval_batch_size": 64},
        "memory": case.memory_options(),
    }
    events = ranks.run(trainer, complete(spec, world, scratch / "output"), world, scratch)
    metrics = [event["eval"] for event in events if "eval" in event]
    if not metrics:
        raise ranks.RunError("there is no eval event")
    return metrics[-1], pathlib.Path(events[-1]["finished"]["output"])


def transformers_loss(directory, documents):
    """(mean negative log-likelihood over label tokens, tokens) of documents one by one."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    total, num_labels, num_tokens = 0.0, 0, 0
    for text in documents:
        ids = tokenizer(text)["input_ids"]
        if not text.endswith(tokenizer.eos_token):
            ids.append(tokenizer.eos_token_id)
        ids = torch.tensor([ids[:MAX_LENGTH]])
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].double()
        total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        num_labels += ids.size(1) - 1
        num_tokens += ids.size(1)
    return total / num_labels, num_tokens


def check(model, options):
    with tempfile.TemporaryDirectory() as scratch:
        try:
            metrics, directory = train(
                options.trainer, options.assets, model, options.world, pathlib.Path(scratch)
            )
        except ranks.RunError as error:
            print(f"FAILED: {model}: {error}", flush=True)
            return False
        lines = (options.assets / "data" / "eval.jsonl").read_text(encoding="utf-8").split("\n")
        documents = [json.loads(line)["text"] for line in lines if line]
        loss, num_tokens = transformers_loss(directory, documents)
    error = relative_error(metrics["loss"], loss)
    good = error <= TOLERANCE and int(metrics["numEvalTokens"]) == num_tokens
    print(
        f"{'ok' if good else 'FAILED'}: {model}: loss {metrics['loss']!r} over "
        f"{metrics['numEvalTokens']} tokens, transformers {loss!r} over {num_tokens}, "
        f"off by {error:.1e}",
        flush=True,
    )
    return good


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--world", required=True, type=int)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    options = parser.parse_args()
    options.assets = options.assets.resolve()
    results = [check(model, options) for model in options.models]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
