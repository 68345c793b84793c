"""Checks a finished demo: the loss fell, and transformers finds the same held-out loss.

check_demo.py DEMO_DIR      reads events.jsonl, data/eval.jsonl, model and out/final
"""

import json
import pathlib
import statistics
import sys

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

MAX_LENGTH = 256  # method.sft.max_length of the job
MAX_LOSS_SHARE = 0.6
LAST_STEPS = 5
MAX_RELATIVE_ERROR = 1e-4


def read_events(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def eval_loss(directory: pathlib.Path, documents: pathlib.Path) -> float:
    """Mean negative log-likelihood of the held-out tokens, a document at a time."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    total, count = 0.0, 0
    for line in documents.read_text(encoding="utf-8").splitlines():
        ids = tokenizer(json.loads(line)["text"])["input_ids"]
        ids = torch.tensor([*ids, tokenizer.eos_token_id][:MAX_LENGTH])
        with torch.inference_mode():
            logits = model(ids[None]).logits[0, :-1]
        total += cross_entropy(logits.double(), ids[1:], reduction="sum").item()
        count += len(ids) - 1
    return total / count


def main() -> int:
    logging.disable_progress_bar()
    demo = pathlib.Path(sys.argv[1])
    events = read_events(demo / "events.jsonl")
    losses = [event["step"]["loss"] for event in events if "step" in event]
    reported = [event["eval"]["loss"] for event in events if "eval" in event][-1]
    before = eval_loss(demo / "model", demo / "data/eval.jsonl")
    after = eval_loss(demo / "out/final", demo / "data/eval.jsonl")
    error = abs(after - reported) / after
    # One step's loss depends on its rows: the end is the mean of the last ones.
    last = statistics.fmean(losses[-LAST_STEPS:])
    share = last / losses[0]

    checks = [
        (
            share < MAX_LOSS_SHARE,
            f"training loss {losses[0]:.3f} -> {last:.3f}, {share:.0%} of its start"
            f" (wanted: under {MAX_LOSS_SHARE:.0%})",
        ),
        (
            after < before,
            f"held-out loss {before:.3f} -> {after:.3f}, on text that was not trained on",
        ),
        (
            error < MAX_RELATIVE_ERROR,
            f"held-out loss of Tessera {reported:.6f}, of transformers from out/final {after:.6f},"
            f" {error:.1e} apart (wanted: under {MAX_RELATIVE_ERROR:.0e})",
        ),
    ]
    for passed, text in checks:
        print(f"{'ok  ' if passed else 'FAIL'}  {text}")
    return 0 if all(passed for passed, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
