#!/usr/bin/env python3
"""Every method where ranks share a stream: losses and gradient norms are those of one rank.

    methods_mesh_test.py --trainer PATH --assets DIR [--all]

What compares documents (DPO, KTO, Reward) adds up what the ranks of a cp axis have of each; GKD's
teacher has its parts of the stream as the student has. A checkpoint of the one rank is gone on from
on each mesh, and on one rank with the same bits. --all: every method on every mesh.
"""

import itertools
import pathlib
import tempfile

import ranks
import trials
from trials import Trials, expect, steps_of
from weights import relative_error

TOLERANCE = 1e-5
STEPS, SAVED_STEP = 3, 2
ROWS = 4  # of a step, over all data-parallel ranks
ROWS_COMPARED = 12  # the same where completions are compared: whole groups
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
    "grpo": (
        "grpo",
        "rollouts",
        "llama",
        {"num_generations": 4, "num_iterations": 3, "beta": 0.1, "loss_type": "bnpo"},
    ),
    "grpo_of_sequences": (
        "grpo",
        "rollouts_sampled",
        "llama",
        {
            "num_generations": 4,
            "num_iterations": 3,
            "beta": 0.1,
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "top_entropy_quantile": 0.5,
        },
    ),
    "rloo": ("rloo", "rollouts", "llama", {"num_generations": 4, "num_iterations": 3}),
    "online_dpo": ("online_dpo", "rollouts_pairs", "llama", {}),
    "ppo": ("ppo", "rollouts_judged", "llama", {"num_ppo_epochs": 2, "kl_coef": 0.2}),
}

# (dp_shard, cp, strategy)
ALONE = (1, 1, "auto")
MESHES = [(1, 2, "ring"), (1, 3, "allgather"), (1, 2, "ulysses"), (2, 2, "auto")]


def run(options, scratch, name, mesh, output="out", **training):
    method, data, model, fields = METHODS[name]
    shard, cp, strategy = mesh
    if method == "gkd":
        fields = fields | {
            "teacher_model_name_or_path": str(options.assets / "models/llama_teacher"),
            "chat_template_path": str(options.assets / "chat.jinja"),
        }
    if method == "ppo":
        fields = fields | {"value_model_path": str(options.assets / "models/llama_reward")}
    spec = trials.make_spec(
        options,
        scratch / output,
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
        per_device_train_batch_size=ROWS_COMPARED if method in trials.ONLINE else ROWS,
        accelerator_config={"split_batches": True},
        **{"save_strategy": "no"} | training,
    )
    return steps_of(trials.train(options, spec))


def compare(steps, alone, tolerance):
    worst = 0.0
    for step, metric in itertools.product(steps, ("loss", "gradNorm")):
        got, want = (float(ranks.metric(of[step], metric)) for of in (steps, alone))
        error = relative_error(got, want)
        expect(error <= tolerance, f"step {step}: {metric} is {got!r}, was {want!r}")
        worst = max(worst, error)
    return f"largest relative error {worst:.1e}"


def check(options, scratch, name, alone, mesh):
    shared = run(options, scratch, name, mesh)
    expect(shared.keys() == alone.keys(), f"the steps are {sorted(shared)}")
    return compare(shared, alone, TOLERANCE)


def check_resume(options, scratch, name, alone, mesh):
    checkpoint = scratch / "alone" / f"checkpoint-{SAVED_STEP}"
    resumed = run(options, scratch, name, mesh, resume_from_checkpoint=str(checkpoint))
    expect(sorted(resumed) == [STEPS], f"the steps are {sorted(resumed)}")
    return compare(resumed, alone, 0 if mesh == ALONE else TOLERANCE)


def add_options(parser):
    parser.add_argument("--all", action="store_true")


def main():
    options = trials.parse(__doc__, add_options)
    checks = Trials()
    for i, name in enumerate(METHODS):
        meshes = MESHES if options.all else [MESHES[i % len(MESHES)], MESHES[(i + 1) % len(MESHES)]]
        with tempfile.TemporaryDirectory() as scratch:
            scratch = pathlib.Path(scratch)
            saves = {"save_strategy": "steps", "save_steps": SAVED_STEP}
            alone = run(options, scratch, name, ALONE, "alone", **saves)
            context = (options, scratch, name, alone)
            for mesh in meshes:
                checks.attempt(f"{name} on {mesh}", check, *context, mesh)
            for mesh in [ALONE, *(MESHES if options.all else meshes[:1])]:
                checks.attempt(f"{name} goes on, on {mesh}", check_resume, *context, mesh)
    checks.finish()


if __name__ == "__main__":
    main()
