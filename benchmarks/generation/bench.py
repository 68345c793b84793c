"""Times generation against its Python peers, and its modes against each other, in alternating runs.

    bench.py --peers PYTHON [--runs N] [--steps N] [--threads N] [--only TEXT] [--cpu-time]
             [--no-write]

PYTHON imports TRL (scripts/setup-bench.sh makes such an interpreter). Three comparisons:

- tokens of the engine (engine_benchmark.cc) against transformers.generate, greedy, of the same
  prompts at once: 1, 8 and 64;
- a step of GRPO, completions made and trained on, against TRL's GRPOTrainer;
- generation of 64 completions on two ranks with weights gathered once, and layer by layer.

The peers run twice: as shipped, and with the one symbol preloaded that makes MKL take its fast path
on AMD processors, as the trainer does by itself. With --cpu-time tokens are counted by the time
that each program had on the cores: on a machine that others use the clock on the wall says little.
Greedy tokens must agree, or the benchmark says that the work differs. Results go between the
markers of docs/benchmarks.md, unless with --only.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
from harness import Sides, spread

PAGE = harness.ROOT / "docs/benchmarks.md"
ENGINE = harness.ROOT / "build/bin/engine_benchmark"
PEER = pathlib.Path(__file__).with_name("peer.py")
VOCAB_SIZE = 2048
BATCHES = [1, 8, 64]
PROMPT_TOKENS = 32
NEW_TOKENS = 64
# Of completions: the others may part where two tokens are equally likely but for rounding.
LEAST_SHARE_EQUAL = 0.8
GRPO_PROMPTS = 4
GRPO_SAMPLES = 8
SIDES = ["tessera", "peer", "peer, mended"]
WORKS = ["generate", "grpo", "layerwise"]


def command_of(side: str, sides: Sides, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """A peer's command, and its environment."""
    mend = {"LD_PRELOAD": str(sides.mend)} if side.endswith("mended") else {}
    return [sides.peers, str(PEER), *arguments], mend


def run_command(command: list[str], more: dict[str, str], sides: Sides, threads: int) -> list[dict]:
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)} | more
    return harness.run_processes([command], environment, sides.folder)[0]


def generate(side: str, sides: Sides, options: argparse.Namespace) -> dict[int, dict]:
    """What was made of each batch, and in what time."""
    draw = random.Random(0)
    prompts = [[draw.randrange(3, VOCAB_SIZE) for _ in range(PROMPT_TOKENS)] for _ in range(64)]
    work = sides.folder / "work.json"
    contents = {
        "model": str(harness.ASSETS / "model"),
        "prompts": prompts,
        "batches": BATCHES,
        "new_tokens": NEW_TOKENS,
        "threads": options.threads,
    }
    work.write_text(json.dumps(contents))
    command, more = [str(ENGINE), str(work)], {}
    if side != "tessera":
        command, more = command_of(side, sides, ["generate", str(work)])
    events = run_command(command, more, sides, options.threads)
    return {
        event["generation"]["batch"]: event["generation"]
        for event in events
        if "generation" in event
    }


def check_same(side: str, ours: dict, theirs: dict) -> None:
    equal = sum(a == b for a, b in zip(ours["tokens"], theirs["tokens"], strict=True))
    if equal < LEAST_SHARE_EQUAL * len(ours["tokens"]):
        sys.exit(
            f"bench: {side} agrees in {equal} of {len(ours['tokens'])} completions: other work"
        )


def compare_generate(sides: Sides, options: argparse.Namespace) -> list[str]:
    speeds: dict[tuple[str, int], list[float]] = {}
    for number in range(options.runs):
        results = {side: generate(side, sides, options) for side in SIDES}
        for side, batches in results.items():
            for batch, made in batches.items():
                if batch > 1:
                    check_same(side, results["tessera"][batch], made)
                tokens = sum(len(completion) for completion in made["tokens"])
                seconds = made["cpu_seconds" if options.cpu_time else "seconds"]
                speeds.setdefault((side, batch), []).append(tokens / seconds)
                print(f"run {number + 1}: {side}, {batch}: {speeds[side, batch][-1]:.0f} tokens/s")
    lines = [
        "### Tokens of the engine",
        "",
        f"Prompts of {PROMPT_TOKENS} tokens, {NEW_TOKENS} new tokens of each, tokens/s"
        + (" of time on the cores." if options.cpu_time else "."),
        "",
        "| at once | tessera | transformers | tessera is faster by | mended | by |",
        "|---|---|---|---|---|---|",
    ]
    for batch in BATCHES:
        ours, *peers = (speeds[side, batch] for side in SIDES)
        cells = [str(batch), f"{statistics.median(ours):.0f}"]
        for peer in peers:
            ratios = [a / b for a, b in zip(ours, peer, strict=True)]
            cells += [f"{statistics.median(peer):.0f}", spread(ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def grpo_job(sides: Sides, options: argparse.Namespace, ranks: int, weights: str) -> dict:
    """GRPO on prompts of some twenty tokens; completions go on to their full length or nearly."""
    prompts = sides.folder / "prompts.jsonl"
    lines = (harness.ASSETS / "pairs.jsonl").read_text(encoding="utf-8").splitlines()[:400]
    words = [" ".join(json.loads(line)["prompt"].split(" ")[:16]) for line in lines]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in words))
    rows = GRPO_PROMPTS * GRPO_SAMPLES if ranks == 1 else 64
    spec = harness.job(
        sides.folder,
        method={"grpo": {"num_generations": GRPO_SAMPLES, "max_completion_length": NEW_TOKENS}},
        steps=options.steps,
        dtype="float32",
        threads=options.threads,
        ranks=ranks,
        rows=rows,
        fields={"data.train": str(prompts), "generation.weights": weights},
    )
    del spec["method"]["grpo"]["max_length"], spec["training"]["shuffle_dataset"]
    spec["reward_funcs"] = [{"name": "brief", "length": {"soft_punish_cache": 16}}]
    return spec


def step_times(events: list[dict]) -> list[dict]:
    return [event["step"] for event in events if "step" in event][harness.WARMUP_STEPS :]


def grpo_seconds(side: str, sides: Sides, options: argparse.Namespace) -> float:
    """Of a step, the median."""
    spec = grpo_job(sides, options, ranks=1, weights="gather")
    (path,) = harness.inputs_of(spec, sides.folder)
    if side == "tessera":
        command, more = [str(harness.TRAINER), "--input", path], {}
        events = run_command(command, more, sides, options.threads)
        return statistics.median(step["time"]["totalSeconds"] for step in step_times(events))
    command, more = command_of(side, sides, ["grpo", path])
    events = run_command(command, more, sides, options.threads)
    return statistics.median(step["seconds"] for step in step_times(events))


def compare_grpo(sides: Sides, options: argparse.Namespace) -> list[str]:
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(options.runs):
        for side in SIDES:
            seconds[side].append(grpo_seconds(side, sides, options))
            print(f"run {number + 1}: {side}: {seconds[side][-1]:.2f} s a step of GRPO")
    lines = [
        "### A step of GRPO",
        "",
        f"{GRPO_PROMPTS} prompts, {GRPO_SAMPLES} completions of each of up to {NEW_TOKENS} tokens,"
        " made and trained on.",
        "",
        "| | seconds | tessera is faster by |",
        "|---|---|---|",
        f"| tessera | {statistics.median(seconds['tessera']):.2f} | |",
    ]
    for side in SIDES[1:]:
        ratios = [b / a for a, b in zip(seconds["tessera"], seconds[side], strict=True)]
        name = side.replace("peer", "trl")
        lines.append(f"| {name} | {statistics.median(seconds[side]):.2f} | {spread(ratios)} |")
    return [*lines, ""]


def generation_seconds(weights: str, sides: Sides, options: argparse.Namespace) -> float:
    """Of making the completions of a step on two ranks, the median."""
    spec = grpo_job(sides, options, ranks=2, weights=weights)
    events, _ = sides.trainers(spec)
    return statistics.median(step["time"]["generationSeconds"] for step in step_times(events))


def compare_layerwise(sides: Sides, options: argparse.Namespace) -> list[str]:
    seconds: dict[str, list[float]] = {"gather": [], "layerwise": []}
    for number in range(options.runs):
        for weights, times in seconds.items():
            times.append(generation_seconds(weights, sides, options))
            print(f"run {number + 1}: {weights}: {times[-1]:.2f} s a generation on two ranks")
    ratios = [b / a for a, b in zip(seconds["gather"], seconds["layerwise"], strict=True)]
    return [
        "### Layer by layer",
        "",
        f"64 completions of up to {NEW_TOKENS} tokens on two ranks of one thread.",
        "",
        "| `generation.weights` | seconds | times those of gather |",
        "|---|---|---|",
        f"| gather | {statistics.median(seconds['gather']):.2f} | |",
        f"| layerwise | {statistics.median(seconds['layerwise']):.2f} | {spread(ratios)} |",
        "",
    ]


def add_options(parser: argparse.ArgumentParser) -> None:
    harness.add_runs(parser, default=3)
    parser.add_argument("--only", default="", choices=["", *WORKS], help="run this alone")
    parser.add_argument("--cpu-time", action="store_true", help="of tokens of the engine")


def main() -> None:
    options = harness.parse(__doc__, steps=4, extend=add_options)
    harness.prepare_assets()
    compare = {
        "generate": compare_generate,
        "grpo": compare_grpo,
        "layerwise": compare_layerwise,
    }
    lines = [
        f"{options.runs} alternating runs, float32, {options.threads} threads in all,"
        f" {harness.processor()}, a Llama of 25M parameters.",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(pathlib.Path(folder), options.peers)
        for work in WORKS:
            if options.only in ("", work):
                lines += compare[work](sides, options)
    print("\n".join(lines))
    if not options.no_write and not options.only:
        harness.write_between_markers(PAGE, "generation", lines[:-1])


if __name__ == "__main__":
    try:
        main()
    except harness.ProcessError as error:
        sys.exit(f"bench: {error}")
