"""Peak memory by owner, and speed, of one job with each memory technique, and of TRL on the same.

    bench.py --peers PYTHON [--runs N] [--steps N] [--threads N] [--only TEXT] [--no-write]

PYTHON imports TRL (scripts/setup-bench.sh makes such an interpreter). Every row is the first one
with one technique more, but for the last ones, which have several. With exact techniques the loss
of every step must be that of the first row, whose first step must have TRL's, or the benchmark says
so. The table and a plot of it go to docs/memory.md and docs/memory.svg, but not those of --only.
"""

import argparse
import dataclasses
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from harness import Run, Sides
from plot import Bar, draw_bars

PAGE = harness.ROOT / "docs/memory.md"
PLOT = harness.ROOT / "docs/memory.svg"
MIB = 2**20
MAX_LOSS_DIFFERENCE = 1e-5
FULL_ROWS = {"packing": True, "packing_strategy": "wrapped"}
# In the order of the plot; what is not named is summed up as "other".
OWNERS = ("parameters", "gradients", "optimizer", "communication", "activations", "head")


@dataclasses.dataclass
class Row:
    name: str
    fields: dict  # of the job file, by path
    exact: bool = True  # whether losses are those of the run without it

    @property
    def clips(self) -> bool:
        return self.fields.get("training.max_grad_norm") != 0


PLAIN = {"memory.gradient_checkpointing": False}
CHECKPOINTING = {"memory.gradient_checkpointing": True}
LEAN = {
    "memory.gradient_checkpointing": True,
    "memory.gradient_checkpointing_policy": "full",
    "memory.activation_offloading": True,
    "memory.mlp_tile_tokens": 256,
    "memory.head_chunk_tokens": 128,
    "memory.offload_optimizer_device": "cpu",
    "memory.optimizer_in_backward": True,
    "training.max_grad_norm": 0,
}
NOTHING_OFFLOADED = {
    "memory.activation_offloading": False,
    "memory.offload_optimizer_device": "none",
}
NO_CLIPPING = {"training.max_grad_norm": 0}
QLORA = {"peft.lora_target_modules": ["all-linear"], "peft.quantization": "nf4"}
ROWS = [
    Row("plain", PLAIN),
    Row("gradient checkpointing: attention", CHECKPOINTING),
    Row(
        "gradient checkpointing: full",
        CHECKPOINTING | {"memory.gradient_checkpointing_policy": "full"},
    ),
    Row("every 2nd block", CHECKPOINTING | {"memory.gradient_checkpointing_every": 2}),
    Row("activation offloading", PLAIN | {"memory.activation_offloading": True}),
    Row("tiled MLP", PLAIN | {"memory.mlp_tile_tokens": 256}),
    Row("head chunks of 128", PLAIN | {"memory.head_chunk_tokens": 128}),
    Row("optimizer in backward", PLAIN | NO_CLIPPING | {"memory.optimizer_in_backward": True}),
    Row("optimizer offloaded", PLAIN | {"memory.offload_optimizer_device": "cpu"}),
    Row("parameters offloaded", PLAIN | {"memory.offload_param_device": "cpu"}),
    Row(
        "optimizer states in bfloat16",
        PLAIN | {"memory.optimizer_state_dtype": "bfloat16"},
        exact=False,
    ),
    Row("optimizer states in int8", PLAIN | {"memory.optimizer_state_dtype": "int8"}, exact=False),
    Row("LoRA", PLAIN | {"peft.lora_target_modules": ["all-linear"]}, exact=False),
    Row("QLoRA, NF4", PLAIN | QLORA, exact=False),
    Row("microbatches of 1", PLAIN | {"training.gradient_accumulation_steps": 8}),
    Row("exact ones together, nothing offloaded", LEAN | NOTHING_OFFLOADED),
    Row("exact ones together", LEAN),
    Row("and microbatches of 1", LEAN | {"training.gradient_accumulation_steps": 8}),
    Row("and QLoRA", LEAN | QLORA | {"training.gradient_accumulation_steps": 8}, exact=False),
]
PEERS = [Row("TRL", PLAIN), Row("TRL, gradient checkpointing", CHECKPOINTING)]


def spec_of(row: Row, folder: pathlib.Path, options: argparse.Namespace) -> dict:
    spec = harness.job(
        folder,
        method={"sft": FULL_ROWS},
        steps=options.steps,
        dtype="float32",
        threads=options.threads,
        fields=row.fields,
    )
    training = spec["training"]
    training["per_device_train_batch_size"] //= training.get("gradient_accumulation_steps", 1)
    return spec


def owners_of(run: Run) -> dict[str, float]:
    """MiB at the peak."""
    taken = {entry["owner"]: int(entry.get("atPeakBytes", 0)) for entry in run.memory["owners"]}
    named = {owner: taken.pop(owner, 0) / MIB for owner in OWNERS}
    return named | {"other": sum(taken.values()) / MIB}


def median(runs: list[Run], field: str) -> float:
    return statistics.median(getattr(run, field) for run in runs)


def measure(rows: list[Row], sides: Sides, options: argparse.Namespace) -> tuple[dict, dict]:
    """Runs of each row, ours and TRL's, in rounds."""
    ours = {row.name: [] for row in rows}
    theirs = {row.name: [] for row in PEERS}
    for _ in range(options.runs):
        for row in PEERS:
            theirs[row.name].append(sides.peer(spec_of(row, sides.folder, options), "trl", True))
        for row in rows:
            run = sides.tessera(spec_of(row, sides.folder, options))
            ours[row.name].append(run)
            print(f"{row.name}: {run.tokens_per_second:.0f} tokens/s", file=sys.stderr, flush=True)
    return ours, theirs


def check_losses(
    rows: list[Row], ours: dict, theirs: dict, sides: Sides, options: argparse.Namespace
) -> None:
    """Of all steps: those after the first show what updates did. The run to compare with is plain,
    and clips gradients where the row does."""
    wanted = {True: ours["plain"][0].losses} if "plain" in ours else {}
    for row in [Row("plain", PLAIN), *(row for row in rows if row.exact)]:
        if row.clips not in wanted:
            plain = Row("plain", PLAIN if row.clips else PLAIN | NO_CLIPPING)
            wanted[row.clips] = sides.tessera(spec_of(plain, sides.folder, options)).losses
        for run in ours.get(row.name, []):
            if not same_losses(run.losses, wanted[row.clips]):
                sys.exit(f"bench: {row.name} has losses {run.losses}, not {wanted[row.clips]}")
    first, other = wanted[True][0], theirs["TRL"][0].losses[0]
    if not same_losses([first], [other]):
        sys.exit(f"bench: the job starts at {first}, TRL at {other}: other work")


def same_losses(found: list[float], wanted: list[float]) -> bool:
    return len(found) == len(wanted) and all(
        abs(ours / theirs - 1) <= MAX_LOSS_DIFFERENCE
        for ours, theirs in zip(found, wanted, strict=True)
    )


def table(ours: dict, theirs: dict) -> list[str]:
    peer = theirs["TRL, gradient checkpointing"]
    peer_bytes, peer_speed = median(peer, "peak_bytes"), median(peer, "tokens_per_second")
    lines = [
        f"| | tensors at peak | {' | '.join(OWNERS)} | other | offloaded | process over import |"
        " of TRL's | tokens/s | of TRL's |",
        "|---" * (len(OWNERS) + 8) + "|",
    ]
    for name, runs in theirs.items():
        cells = [""] * (len(OWNERS) + 3)
        lines.append(line_of(name, cells, runs, peer_bytes, peer_speed))
    for name, runs in ours.items():
        run = runs[0]
        owners = [f"{size:.1f}" for size in owners_of(run).values()]
        total = f"{int(run.memory['peakBytes']) / MIB:.1f}"
        host = int(run.memory.get("hostPeakBytes", 0)) / MIB
        cells = [total, *owners, f"{host:.1f}" if host else ""]
        lines.append(line_of(name, cells, runs, peer_bytes, peer_speed))
    return lines


def line_of(name, cells, runs, peer_bytes, peer_speed) -> str:
    process, speed = median(runs, "peak_bytes"), median(runs, "tokens_per_second")
    cells = [*cells, f"{process / MIB:.0f}", f"{process / peer_bytes:.2f}"]
    return f"| {' | '.join([name, *cells, f'{speed:.0f}', f'{speed / peer_speed:.2f}'])} |"


def add_options(parser: argparse.ArgumentParser) -> None:
    harness.add_runs(parser, default=1)
    parser.add_argument("--only", default="", help="run the rows whose names hold this")


def main() -> None:
    options = harness.parse(__doc__, steps=6, extend=add_options)
    rows = harness.chosen(ROWS, options.only)
    harness.prepare_assets()
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(pathlib.Path(folder), options.peers)
        ours, theirs = measure(rows, sides, options)
        check_losses(rows, ours, theirs, sides, options)
    lines = [
        f"A Llama of 25M parameters, {harness.ROWS_PER_STEP} full rows of 512 tokens a step,"
        f" float32, {options.threads} threads, {harness.processor()}; speeds are medians of"
        f" {options.steps - harness.WARMUP_STEPS} steps and {options.runs} run(s). Sizes in MiB;"
        " TRL with the MKL mend, gradient checkpointing on in the ratios.",
        "",
        *table(ours, theirs),
        "",
        "![peak by owner](memory.svg)",
    ]
    print("\n".join(lines))
    if not options.no_write and not options.only:
        harness.write_between_markers(PAGE, "bench", lines)
        bars = [Bar(name, owners_of(runs[0])) for name, runs in ours.items()]
        PLOT.write_text(draw_bars(bars, unit="MiB"), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except harness.ProcessError as error:
        sys.exit(f"bench: {error}")
