"""Times the trainer against its Python peers, on the same work, in alternating runs.

    bench.py --peers PYTHON [--runs N] [--steps N] [--threads N] [--size 25m|100m|tiny]
             [--dtype float32|bfloat16] [--corpus JSONL] [--only TEXT] [--no-write]

PYTHON imports TRL (scripts/setup-bench.sh makes such an interpreter). The peers run twice: as
shipped, and with the one symbol preloaded that makes MKL take its fast path on AMD processors, as
the trainer does by itself. Losses must agree, or the benchmark says that the work differs.
Results go between the markers of docs/benchmarks.md that are for this size and type, but for those
of --only.
"""

import argparse
import dataclasses
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from harness import Run, Sides, spread

PAGE = harness.ROOT / "docs/benchmarks.md"
MAX_LOSS_DIFFERENCE = {"float32": 1e-4, "bfloat16": 2e-2}


@dataclasses.dataclass
class Work:
    name: str
    method: dict
    peer: str = "trl"
    world_size: int = 1
    rows: int = harness.ROWS_PER_STEP
    documents: str = "documents"


FULL_ROWS = {"sft": {"packing": True, "packing_strategy": "wrapped"}}
WORKS = [
    Work("full rows of 512", FULL_ROWS),
    Work("uneven documents", {"sft": {"packing": False, "packing_strategy": "bfd"}}),
    Work("uneven documents, packed", {"sft": {"packing": True, "packing_strategy": "bfd"}}),
    Work("full rows of 512, two ranks", FULL_ROWS, "fully_shard", world_size=2),
    Work("DPO, pairs of uneven documents", {"dpo": {}}, rows=4, documents="pairs"),
    Work("KTO, uneven documents", {"kto": {}}, documents="labelled"),
]


def run(side: str, sides: Sides, work: Work, options: argparse.Namespace) -> Run:
    spec = harness.job(
        sides.folder,
        method=work.method,
        steps=options.steps,
        dtype=options.dtype,
        threads=options.threads,
        ranks=work.world_size,
        rows=work.rows,
        documents=work.documents,
        size=options.size,
    )
    if side == "tessera":
        return sides.tessera(spec)
    return sides.peer(spec, work.peer, mended=side.endswith("mended"))


def compare(sides: Sides, work: Work, options: argparse.Namespace) -> dict[str, list[Run]]:
    results: dict[str, list[Run]] = {}
    for number in range(options.runs):
        for side in ("tessera", work.peer, f"{work.peer}, mended"):
            result = run(side, sides, work, options)
            results.setdefault(side, []).append(result)
            line = f"{work.name}, run {number + 1}: {side}: {result.tokens_per_second:.0f} tokens/s"
            print(line, file=sys.stderr, flush=True)
    ours = results["tessera"][0].losses
    for side, runs in results.items():
        for step, (loss, own) in enumerate(zip(runs[0].losses, ours, strict=True), start=1):
            if abs(loss - own) > step * MAX_LOSS_DIFFERENCE[options.dtype] * own:
                sys.exit(f"bench: {side} has loss {loss} in step {step}, tessera {own}: other work")
    return results


def table(name: str, results: dict[str, list[Run]]) -> list[str]:
    lines = [
        f"### {name}",
        "",
        "| | useful tokens/s | tessera is faster by | peak memory | of it, tessera takes |",
        "|---|---|---|---|---|",
    ]
    for side, runs in results.items():
        pairs = list(zip(results["tessera"], runs, strict=True))
        speed = statistics.median(run.tokens_per_second for run in runs)
        faster = spread([ours.tokens_per_second / peer.tokens_per_second for ours, peer in pairs])
        memory = statistics.median(run.peak_bytes for run in runs) / 2**20
        share = spread([ours.peak_bytes / peer.peak_bytes for ours, peer in pairs])
        if side == "tessera":
            faster = share = ""
        lines.append(f"| {side} | {speed:.0f} | {faster} | {memory:.0f} MiB | {share} |")
    return [*lines, ""]


def add_options(parser: argparse.ArgumentParser) -> None:
    harness.add_runs(parser, default=3)
    harness.add_size(parser)
    parser.add_argument("--dtype", choices=MAX_LOSS_DIFFERENCE, default="float32")
    parser.add_argument("--only", default="", help="run the works whose names hold this")


def main() -> None:
    options = harness.parse(__doc__, steps=6, extend=add_options)
    works = harness.chosen(WORKS, options.only)
    options.size = options.size or harness.SIZES[0]
    harness.prepare_assets(options.size, options.corpus)
    lines = [
        f"{options.runs} alternating runs of {options.steps} steps of {harness.ROWS_PER_STEP} rows"
        f" (DPO: 4 pairs) of up to 512 tokens, {options.dtype}, {options.threads} threads in all,"
        f" {harness.processor()}, a Llama of {options.size.upper()} parameters, gradient"
        " checkpointing on.",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(pathlib.Path(folder), options.peers)
        for work in works:
            lines += table(work.name, compare(sides, work, options))
    print("\n".join(lines))
    if not options.no_write and not options.only:
        name = f"bench {options.size} {options.dtype}"
        harness.write_between_markers(PAGE, name, lines[:-1])


if __name__ == "__main__":
    try:
        main()
    except harness.ProcessError as error:
        sys.exit(f"bench: {error}")
