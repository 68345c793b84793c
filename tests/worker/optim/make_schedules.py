#!/usr/bin/env python3
"""Writes fixtures/schedules.jsonl: learning rates that transformers' schedules give.

Run by hand when a case is added, in an environment with tests/parity/requirements.txt. A line has
`training` (the job file's fields), `total_steps`, and `rates`: that of each step; or with `metrics`
that before the first evaluation and after each.
"""

import json
import pathlib

import torch
from transformers import TrainingArguments
from transformers.optimization import get_scheduler

FIXTURE = pathlib.Path(__file__).parent / "fixtures" / "schedules.jsonl"
TOTAL_STEPS = 23
METRICS = [5.0, 4.0, 4.1, 3.9999, 4.2, 4.0, 3.5, 3.6, 3.7, 3.4999, 3.8, 3.9, 4.0, 2.0, 2.1, 2.2]
MIN_LR = "cosine_with_min_lr"
WARM_MIN_LR = "cosine_warmup_with_min_lr"
WSD = "warmup_stable_decay"
PLATEAU = "reduce_lr_on_plateau"

# (lr_scheduler_type, warmup_steps, lr_scheduler_kwargs)
STEP_CASES = [
    ("linear", 0, {}),
    ("linear", 5, {}),
    ("linear", 0.21, {}),
    ("linear", 40, {}),
    ("cosine", 0, {}),
    ("cosine", 4, {}),
    ("cosine", 4, {"num_cycles": 1.5}),
    ("cosine_with_restarts", 3, {}),
    ("cosine_with_restarts", 0, {"num_cycles": 3}),
    ("cosine_with_restarts", 2, {"num_cycles": 4}),
    ("polynomial", 0, {}),
    ("polynomial", 6, {"power": 2.5, "lr_end": 1e-5}),
    ("polynomial", 1, {"power": 0.5}),
    ("constant", 7, {}),
    ("constant_with_warmup", 7, {}),
    ("constant_with_warmup", 0.5, {}),
    ("inverse_sqrt", 0, {}),
    ("inverse_sqrt", 6, {}),
    ("inverse_sqrt", 4, {"timescale": 9}),
    (MIN_LR, 0, {"min_lr": 1e-4}),
    (MIN_LR, 5, {"min_lr_rate": 0.3}),
    (MIN_LR, 5, {"min_lr_rate": 0.1, "num_cycles": 1.25}),
    (WARM_MIN_LR, 5, {"min_lr": 1e-4}),
    (WARM_MIN_LR, 5, {"min_lr_rate": 0.05, "warmup_lr_rate": 0.2}),
    (WARM_MIN_LR, 1, {"min_lr_rate": 0.05, "warmup_lr_rate": 0.2, "num_cycles": 1}),
    (WARM_MIN_LR, 0, {"min_lr_rate": 0.0}),
    (WSD, 4, {"num_decay_steps": 6}),
    (WSD, 4, {"num_decay_steps": 6, "num_stable_steps": 3}),
    (WSD, 0.2, {"num_decay_steps": 9, "decay_type": "linear", "warmup_type": "cosine"}),
    (WSD, 6, {"num_decay_steps": 7, "decay_type": "1-sqrt", "warmup_type": "1-sqrt"}),
    (WSD, 5, {"num_decay_steps": 30, "min_lr_ratio": 0.2, "num_cycles": 0.75}),
    (WSD, 5, {"num_decay_steps": 0, "min_lr_ratio": 0.1}),
]
PLATEAU_CASES = [
    {"patience": 1},
    {"patience": 0, "factor": 0.5, "cooldown": 2},
    {"patience": 1, "threshold": 0.3, "threshold_mode": "abs", "min_lr": 5e-4, "factor": 0.7},
    {"patience": 0, "mode": "max", "factor": 0.3, "threshold": 0.01},
    {"patience": 0, "mode": "max", "threshold_mode": "abs", "eps": 1e-4},
]


def scheduler_of(training):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=training["learning_rate"])
    args = TrainingArguments(
        output_dir="unused",
        warmup_steps=training.get("warmup_steps", 0),
        report_to=[],
        use_cpu=True,
    )
    scheduler = get_scheduler(
        training["lr_scheduler_type"],
        optimizer,
        num_warmup_steps=args.get_warmup_steps(TOTAL_STEPS),
        num_training_steps=TOTAL_STEPS,
        scheduler_specific_kwargs=dict(training["lr_scheduler_kwargs"]),
    )
    return optimizer, scheduler


def main():
    lines = []
    for kind, warmup, kwargs in STEP_CASES:
        training = {
            "learning_rate": 3e-3,
            "lr_scheduler_type": kind,
            "warmup_steps": warmup,
            "lr_scheduler_kwargs": kwargs,
        }
        optimizer, scheduler = scheduler_of(training)
        rates = []
        for _ in range(TOTAL_STEPS):
            rates.append(scheduler.get_last_lr()[0])
            optimizer.step()
            scheduler.step()
        lines.append({"training": training, "total_steps": TOTAL_STEPS, "rates": rates})
    for kwargs in PLATEAU_CASES:
        training = {
            "learning_rate": 3e-3,
            "lr_scheduler_type": PLATEAU,
            "lr_scheduler_kwargs": kwargs,
        }
        optimizer, scheduler = scheduler_of(training)
        rates = [optimizer.param_groups[0]["lr"]]
        for metric in METRICS:
            scheduler.step(metric)
            rates.append(optimizer.param_groups[0]["lr"])
        lines.append({"training": training, "total_steps": 1, "metrics": METRICS, "rates": rates})
    FIXTURE.parent.mkdir(exist_ok=True)
    FIXTURE.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
