#!/usr/bin/env python3
"""What the ledger says of real jobs: whose the memory is, and what a limit on it does.

ledger_test.py --trainer PATH --assets DIR
"""

import models
import ranks
import trials
from trials import expect, last_memory

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


def make_spec(options, scratch, world=1, fields=None, **training):
    model = scratch / "model"
    if not model.exists():
        models.write_model(model, "ledger", models.MODELS["llama"] | SIZE)
    training = {
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "save_strategy": "no",
    } | training
    fields = {"model.path": str(model), "method.sft.max_length": 128} | (fields or {})
    return trials.make_spec(
        options, scratch / "output", world, train="mixed", fields=fields, **training
    )


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
    held_out = str(options.assets / "data" / "eval.jsonl")
    saves = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    shares = []
    for world in (1, 2):
        for name, techniques in TECHNIQUES.items():
            directory = scratch / f"{world}-{name}"
            directory.mkdir()
            fields = {"data.eval": held_out, "memory": techniques}
            spec = make_spec(options, directory, world, fields, **saves)
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
    spec = make_spec(options, scratch, fields={"resources.device_memory": str(limit)})
    return trials.run_alone(options, spec, scratch)


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


if __name__ == "__main__":
    trials.run_each(__doc__, check_owners, check_limit)
