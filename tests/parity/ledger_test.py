#!/usr/bin/env python3
"""What the ledger says of real jobs: whose the memory is, and what a limit on it does.

ledger_test.py --trainer PATH --assets DIR
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import models
import ranks

# 1.2 million parameters: much less would let the numbers of a step count for something.
SIZE = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "head_dim": 32}
TECHNIQUES = {
    "recompute": {},
    "plain": {"gradient_checkpointing": False},
    "offloading": {"gradient_checkpointing": False, "activation_offloading": True},
    "tiles": {"gradient_checkpointing_policy": "full", "mlp_tile_tokens": 16},
    "states": {"sharding": "zero2", "offload_optimizer_device": "cpu"},
}
# Of the peak, what no owner is named for.
UNATTRIBUTED = 0.01


class LedgerError(Exception):
    """What the ledger says and should not."""


def expect(condition, message):
    if not condition:
        raise LedgerError(message)


def make_spec(options, scratch, world=1, **sections):
    model = scratch / "model"
    if not model.exists():
        models.write_model(model, "ledger", models.MODELS["llama"] | SIZE)
    training = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "output_dir": str(scratch / "output"),
    }
    return {
        "name": "ledger",
        "method": {"sft": {"max_length": 128}},
        "model": {"path": str(model), "tokenizer": str(options.assets / "tokenizer")},
        "data": {"train": str(options.assets / "data" / "mixed.jsonl")} | sections.get("data", {}),
        "training": training | sections.get("training", {}),
        "memory": sections.get("memory", {}),
        "parallelism": {"num_processes": world},
        "resources": {"cpu_threads": 1} | sections.get("resources", {}),
    }


def last_memory(events):
    return [event["memory"] for event in events if "memory" in event][-1]


def check_snapshot(name, memory):
    for total, part in (("peakBytes", "owners"), ("hostPeakBytes", "hostOwners")):
        peak = int(memory[total])
        added = sum(int(entry["atPeakBytes"]) for entry in memory[part])
        expect(added == peak, f"{name}: the {part} hold {added} bytes of {peak}")
    peak = int(memory["peakBytes"])
    other = int(memory["unattributedAtPeakBytes"])
    expect(
        other < UNATTRIBUTED * peak, f"{name}: {other} bytes of {peak} at the peak have no owner"
    )
    return other / peak


def check_owners(options, scratch):
    """All but a hundredth of the peak has an owner, on every rank and with all that a job does."""
    held_out = {"eval": str(options.assets / "data" / "eval.jsonl")}
    saves = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    shares = []
    for world in (1, 2):
        for name, techniques in TECHNIQUES.items():
            directory = scratch / f"{world}-{name}"
            directory.mkdir()
            spec = make_spec(
                options, directory, world, data=held_out, training=saves, memory=techniques
            )
            ranks.run(options.trainer, spec, world, directory)
            for rank in range(world):
                memory = last_memory(ranks.read_events(directory / f"rank{rank}.out"))
                expect(memory["rank"] == rank, f"rank {memory['rank']}")
                shares.append(check_snapshot(f"{name}, rank {rank} of {world}", memory))
                offloads = name in ("offloading", "states")
                expect((int(memory["hostPeakBytes"]) > 0) == offloads, f"{name}: {memory}")
    return f"unattributed: {100 * max(shares):.3f}% of the peak at most"


def run_limited(options, scratch, limit):
    """(exit code, events) of a job on one rank that may hold `limit` bytes."""
    spec = make_spec(options, scratch, resources={"device_memory": str(limit)})
    path = scratch / "limited.json"
    path.write_text(json.dumps({"spec": spec, "job_id": "ledger", "local_world_size": 1}))
    done = subprocess.run(
        [options.trainer, "--input", path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=ranks.TIMEOUT_SECONDS,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def check_limit(options, scratch):
    """A job runs in what it needs, and in a byte less fails with the table of what it holds."""
    events = ranks.run(options.trainer, make_spec(options, scratch), 1, scratch)
    peak = int(last_memory(events)["peakBytes"])
    code, events = run_limited(options, scratch, peak)
    expect(code == 0, f"with a limit of its peak, {peak}, it ends with {events[-1]}")
    expect(int(last_memory(events)["deviceLimitBytes"]) == peak, "the limit is not reported")
    code, events = run_limited(options, scratch, peak - 1)
    failure = events[-1].get("failed", {})
    expect(code == 1 and failure.get("kind") == "MEMORY", f"it ends with {code}, {events[-1]}")
    refusal = failure["outOfMemory"]
    held = int(refusal["memory"]["currentBytes"])
    asked = refusal["requested"]
    expect(refusal["space"] == "device", f"the space is {refusal['space']}")
    expect(
        held < peak <= held + int(asked["bytes"]),
        f"{asked} was refused at {held} of {peak - 1} bytes",
    )
    expect(sum(int(cell["bytes"]) for cell in refusal["cells"]) == held, "the cells do not sum up")
    owners = {entry["owner"] for entry in refusal["memory"]["owners"]}
    expect({"parameters", "optimizer", "activations"} <= owners, f"the owners are {owners}")
    message = failure["message"]
    wanted = f"for {asked['owner']} of {asked['block']} in {asked['phase']}: "
    expect(message.startswith("cannot allocate ") and wanted in message, message)
    return message


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    options.assets = options.assets.resolve()
    failed = False
    for body in (check_owners, check_limit):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                print(f"ok: {body.__name__}: {body(options, pathlib.Path(scratch))}", flush=True)
            except (LedgerError, ranks.RunError) as problem:
                failed = True
                print(f"FAILED: {body.__name__}: {problem}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
