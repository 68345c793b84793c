#!/usr/bin/env python3
"""Every method where ranks share a stream: losses and gradient norms are those of one rank.

    methods_mesh_test.py --trainer PATH --assets DIR [--all]

What compares documents (DPO, KTO, Reward) adds up what the ranks of a cp axis have of each; GKD's
teacher has its parts of the stream as the student has. --all: every method on every mesh.
"""

import itertools
import pathlib
import tempfile

import ranks
import trials
from trials import Trials, expect, steps_of
from weights import relative_error

TOLERANCE = 1e-5
STEPS = 3
ROWS = 4  # of a step, over all data-parallel ranks
# name: (method, data, model, fields of the method)
METHODS = {
    "dpo": ("dpo", "preferences", "llama", {}),
    "dpo_of_all_rows": (
        "dpo",
        "preferences",
        "llama",
        {"ld_alpha": 0.5, "loss_type": ["sigmoid", "aot", "sft"]},
    ),
    "kto": ("kto", "judged", "llama", {}),
    "reward": ("reward", "pairs", "llama_reward", {}),
    "gkd": ("gkd", "chats", "llama", {}),
}
# (dp_shard, cp, strategy)
MESHES = [(1, 2, "ring"), (1, 3, "allgather"), (1, 2, "ulysses"), (2, 2, "auto")]


def run(options, scratch, name, mesh):
    method, data, model, fields = METHODS[name]
    shard, cp, strategy = mesh
    if method == "gkd":
        fields = fields | {
            "teacher_model_name_or_path": str(options.assets / "models/llama_teacher"),
            "chat_template_path": str(options.assets / "chat.jinja"),
        }
    spec = trials.make_spec(
        options,
        scratch / "out",
        shard * cp,
        method=method,
        model=model,
        train=data,
        fields={
            "data.cache_dir": str(scratch / "cache"),
            "parallelism.cp_size": cp,
            "parallelism.cp_strategy": strategy,
        }
        | {f"method.{method}.{field}": value for field, value in fields.items()},
        max_steps=STEPS,
        # KTO takes other rows' completions from as many rows as this.
        per_device_train_batch_size=ROWS,
        accelerator_config={"split_batches": True},
        save_strategy="no",
    )
    return steps_of(trials.train(options, spec))


def check(options, scratch, name, alone, mesh):
    shared, worst = run(options, scratch, name, mesh), 0.0
    expect(shared.keys() == alone.keys(), f"the steps are {sorted(shared)}")
    for step, metric in itertools.product(alone, ("loss", "gradNorm")):
        got, want = (float(ranks.metric(of[step], metric)) for of in (shared, alone))
        error = relative_error(got, want)
        expect(error <= TOLERANCE, f"step {step}: {metric} is {got!r}, was {want!r}")
        worst = max(worst, error)
    return f"largest relative error {worst:.1e}"


def add_options(parser):
    parser.add_argument("--all", action="store_true")


def main():
    options = trials.parse(__doc__, add_options)
    checks = Trials()
    for i, name in enumerate(METHODS):
        meshes = MESHES if options.all else [MESHES[i % len(MESHES)], MESHES[(i + 1) % len(MESHES)]]
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            alone = run(options, scratch, name, (1, 1, "auto"))
            for mesh in meshes:
                checks.attempt(f"{name} on {mesh}", check, options, scratch, name, alone, mesh)
    checks.finish()


if __name__ == "__main__":
    main()
