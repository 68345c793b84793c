"""The longest sequence that trains in a budget of memory, beside TRL's.

    longest.py --peers PYTHON [--budget-mib N] [--threads N] [--no-run] [--no-write]

One row of one document a step. Tessera's lengths are searched for by rehearsals, with the
techniques of LEAN and several places to offload to, and then trained on under
resources.device_memory, which enforces the budget. TRL's is searched for by training: what its
process holds over its libraries must stay within the budget.
PYTHON imports TRL (scripts/setup-bench.sh makes such an interpreter). Goes to docs/memory.md.
"""

import argparse
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from bench import LEAN, MIB, PAGE
from harness import Sides

# A search ends when the length is known to this.
STEP_TOKENS = 256
MOST_TOKENS = 1 << 18
ON_DEVICE = {"memory.offload_optimizer_device": "none"}
VARIANTS = {
    "nothing offloaded": ON_DEVICE | {"memory.activation_offloading": False},
    "activations on disk": ON_DEVICE | {"memory.activation_offloading_target": "disk"},
    "activations and optimizer in host memory, which is not counted": {},
}


def spec_of(tokens: int, folder: pathlib.Path, fields: dict, options: argparse.Namespace) -> dict:
    rows = {"packing": True, "packing_strategy": "wrapped", "max_length": tokens}
    return harness.job(
        folder,
        method={"sft": rows},
        steps=options.steps,
        dtype="float32",
        threads=options.threads,
        fields=fields | {"training.per_device_train_batch_size": 1},
    )


def longest(fits) -> int:
    """The largest multiple of STEP_TOKENS that fits, if lengths below one that fits do, too."""
    low, high = 0, 4
    while high * STEP_TOKENS < MOST_TOKENS and fits(high * STEP_TOKENS):
        low, high = high, high * 2
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * STEP_TOKENS) else (low, middle)
    return low * STEP_TOKENS


def rehearsed_bytes(spec: dict, folder: pathlib.Path) -> int:
    (path,) = harness.inputs_of(spec, folder)
    return int(harness.ask_trainer("--rehearse", "--input", path)["peakBytes"])


def ours(variant: str, sides: Sides, options: argparse.Namespace) -> tuple[int, harness.Run | None]:
    fields = LEAN | VARIANTS[variant]

    def fits(tokens: int) -> bool:
        spec = spec_of(tokens, sides.folder, fields, options)
        return rehearsed_bytes(spec, sides.folder) <= options.budget_mib * MIB

    tokens = longest(fits)
    if options.no_run:
        return tokens, None
    limit = {"resources.device_memory": f"{options.budget_mib}MiB"}
    return tokens, sides.tessera(spec_of(tokens, sides.folder, fields | limit, options))


def theirs(sides: Sides, options: argparse.Namespace) -> int:
    def fits(tokens: int) -> bool:
        fields = {"memory.gradient_checkpointing": True}
        run = sides.peer(spec_of(tokens, sides.folder, fields, options), "trl", mended=True)
        print(f"TRL, {tokens} tokens: {run.peak_bytes / MIB:.0f} MiB", file=sys.stderr, flush=True)
        return run.peak_bytes <= options.budget_mib * MIB

    return longest(fits)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget-mib", type=int, default=1024)
    parser.add_argument("--no-run", action="store_true", help="only rehearse the length found")


def main() -> None:
    options = harness.parse(__doc__, steps=2, extend=add_options)
    harness.prepare_assets()
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(pathlib.Path(folder), options.peers)
        found = {variant: ours(variant, sides, options) for variant in VARIANTS}
        peer_tokens = theirs(sides, options)
    lines = [
        f"The longest sequence that trains in {options.budget_mib} MiB of tensors; a Llama of 25M"
        " parameters, float32. TRL: gradient checkpointing on, what its process holds over its"
        " libraries.",
        "",
        "| | tokens | of TRL's | peak of a run | its process over import | tokens/s |",
        "|---|---|---|---|---|---|",
        f"| TRL | {peer_tokens} | | | | |",
    ]
    for variant, (tokens, run) in found.items():
        cells = ["", "", ""]
        if run:
            sizes = (int(run.memory["peakBytes"]), run.peak_bytes)
            cells = [*(f"{size / MIB:.0f} MiB" for size in sizes), f"{run.tokens_per_second:.0f}"]
        line = [variant, str(tokens), f"{tokens / peer_tokens:.1f}", *cells]
        lines.append(f"| {' | '.join(line)} |")
    print("\n".join(lines))
    if not options.no_write:
        harness.write_between_markers(PAGE, "longest", lines)


if __name__ == "__main__":
    try:
        main()
    except harness.ProcessError as error:
        sys.exit(f"bench: {error}")
