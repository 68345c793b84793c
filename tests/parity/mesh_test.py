#!/usr/bin/env python3
"""Trains real ranks on meshes: dp_replicate x dp_shard x cp.

    mesh_test.py --trainer PATH --assets DIR [--all]

Every mesh gives the losses and gradient norms of one rank that has all rows, 1e-5 relative, for one
long document and for uneven packed ones, and counts the same tokens. A run that one mesh saved goes
on with others. On a long document a rank of four that share it holds at most 0.3 of the activations
that one rank does.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import ranks
from weights import relative_error

TOLERANCE = 1e-5
STEPS = 4
SAVED_STEP = 2
GLOBAL_ROWS = 4
# name: (dp_replicate, dp_shard, cp, strategy). The slice is what ctest runs.
SLICE = {
    "1x1x2 allgather": (1, 1, 2, "allgather"),
    "1x1x3 ring": (1, 1, 3, "ring"),
    "1x1x4 ulysses": (1, 1, 4, "ulysses"),
    "1x2x2 auto": (1, 2, 2, "auto"),
    "2x2x1": (2, 2, 1, "auto"),
    "2x1x2 ring": (2, 1, 2, "ring"),
}
MORE = {
    f"{replicate}x{shard}x{cp} {strategy}": (replicate, shard, cp, strategy)
    for replicate, shard, cp in ((1, 1, 2), (1, 1, 3), (1, 1, 4), (1, 2, 2), (2, 1, 2), (2, 2, 2))
    for strategy in ("allgather", "ring", "ulysses", "auto")
    if (strategy != "ulysses" or cp != 3)
} | {"2x1x1": (2, 1, 1, "auto"), "4x1x1": (4, 1, 1, "auto")}
DATA = ("long", "packed")
# (the mesh that saves, those that go on)
RESUMES = ((4, 1, 1), [(2, 2, 1), (1, 2, 2), (1, 1, 4), (1, 1, 1)])
ACTIVATION_SHARE = 0.3


class MeshError(Exception):
    """What a mesh did otherwise than one rank."""


def expect(condition, message):
    if not condition:
        raise MeshError(message)


def write_long(path):
    """A document a row, each as long as a row may be."""
    words = ["jumps", "over", "the", "lazy", "dog", "while", "seven", "wizards", "vex", "it"]
    with path.open("w", encoding="utf-8") as file:
        for row in range(GLOBAL_ROWS):
            text = " ".join(words[(i * (row + 3)) % len(words)] for i in range(1500))
            file.write(json.dumps({"text": text}) + "\n")


def make_spec(options, scratch, output, data, mesh, **training):
    replicate, shard, cp, *strategy = mesh
    long = data == "long"
    sft = {"max_length": 499} if long else {"max_length": 64, "packing": True}
    return {
        "name": "mesh",
        "method": {"sft": sft},
        "model": {
            "path": str(options.assets / "models" / "llama"),
            "tokenizer": str(options.assets / "tokenizer"),
        },
        "data": {
            "train": str(scratch / "long.jsonl" if long else options.assets / "data/few.jsonl"),
            "cache_dir": str(scratch / "cache"),
        },
        "training": {
            "max_steps": STEPS,
            "per_device_train_batch_size": GLOBAL_ROWS // (replicate * shard),
            "learning_rate": 1e-3,
            "save_strategy": "no",
            "output_dir": str(output),
        }
        | training,
        "parallelism": {
            "num_processes": replicate * shard * cp,
            "dp_replicate_size": replicate,
            "cp_size": cp,
        }
        | ({"cp_strategy": strategy[0]} if strategy else {}),
        "resources": {"device": "cpu", "cpu_threads": 1},
    }


def train(options, spec):
    """Rank 0's steps, and the most bytes of activations at the peak of any rank."""
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        world = spec["parallelism"]["num_processes"]
        events = ranks.run(options.trainer, spec, world, directory)
        held = [
            owner_bytes(ranks.read_events(directory / f"rank{rank}.out")) for rank in range(world)
        ]
    return [event["step"] for event in events if "step" in event], max(held)


def owner_bytes(events):
    last = [event["memory"] for event in events if "memory" in event][-1]
    return sum(
        int(owner.get("peakBytes", 0))
        for owner in last["owners"]
        if owner["owner"] == "activations"
    )


def compare(got, want):
    """The largest relative error of a metric."""
    expect(len(got) == len(want), f"{len(got)} steps, not {len(want)}")
    worst = 0.0
    for ours, theirs in zip(got, want, strict=True):
        for metric in ("loss", "gradNorm", "numTokens"):
            error = relative_error(float(ours[metric]), float(theirs[metric]))
            limit = 0 if metric == "numTokens" else TOLERANCE
            expect(
                error <= limit,
                f"step {theirs['step']}: {metric} is {ours[metric]}, it was {theirs[metric]}",
            )
            worst = max(worst, error)
    return worst


def check_mesh(options, scratch, whole, mesh):
    worst = 0.0
    for data in DATA:
        spec = make_spec(options, scratch, scratch / "out", data, mesh)
        steps, _ = train(options, spec)
        worst = max(worst, compare(steps, whole[data][0]))
    return f"largest relative error {worst:.1e}"


def check_resume(options, scratch, whole, mesh):
    source = scratch / "saved"
    spec = make_spec(
        options,
        scratch,
        scratch / "resumed",
        "packed",
        mesh,
        resume_from_checkpoint=str(source / f"checkpoint-{SAVED_STEP}"),
    )
    steps, _ = train(options, spec)
    worst = compare(steps, whole["packed"][0][SAVED_STEP:])
    return f"largest relative error {worst:.1e}"


def check_activations(options, scratch):
    """All that forward leaves for backward: with recompute that is little in so small a model."""
    held = []
    for mesh in ((1, 1, 1), (1, 1, 4)):
        spec = make_spec(options, scratch, scratch / "out", "long", mesh)
        spec["memory"] = {"gradient_checkpointing": False}
        held.append(train(options, spec)[1])
    share = held[1] / held[0]
    expect(share <= ACTIVATION_SHARE, f"a rank of four holds {share:.3f} of one rank's activations")
    return f"a rank of four holds {share:.3f} of one rank's activations"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--all", action="store_true", help="every mesh and strategy; else a few")
    options = parser.parse_args()
    options.assets = options.assets.resolve()
    failed = False

    def attempt(name, body, *arguments):
        nonlocal failed
        try:
            print(f"ok: {name}: {body(options, *arguments)}", flush=True)
        except (MeshError, ranks.RunError) as problem:
            failed = True
            print(f"FAILED: {name}: {problem}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        write_long(scratch / "long.jsonl")
        whole = {
            data: train(options, make_spec(options, scratch, scratch / "out", data, (1, 1, 1)))
            for data in DATA
        }
        for name, mesh in (SLICE | MORE if options.all else SLICE).items():
            attempt(name, check_mesh, scratch, whole, mesh)
        saves = {"save_strategy": "steps", "save_steps": SAVED_STEP}
        saver, resumers = RESUMES
        train(options, make_spec(options, scratch, scratch / "saved", "packed", saver, **saves))
        for mesh in resumers:
            attempt(f"{saver} saves, {mesh} goes on", check_resume, scratch, whole, mesh)
        attempt("activations", check_activations, scratch)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
