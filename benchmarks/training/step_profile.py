"""Where the time of a training step goes, beside what its matrix products take by themselves.

    step_profile.py [--size 25m|100m|tiny] [--dtype float32|bfloat16] [--rows N] [--ranks 1|2]
                    [--steps N] [--threads N] [--corpus JSONL] [--no-write]

Trains a Llama on full rows of 512 tokens and traces some of the steps (training.profile_steps).
The products of a traced step, attention's among them, are then run back to back in a process of
their own, with the same shapes, strides, library and threads: the limit of what a step can be.
Without --size and --dtype the four profiles of docs/benchmarks.md are made, and written there.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import harness
import step_trace
from harness import Sides
from step_trace import Attention, Operand, Product

PAGE = harness.ROOT / "docs/benchmarks.md"
PRODUCTS = harness.ROOT / "benchmarks/training/products.py"
FULL_ROWS = {"sft": {"packing": True, "packing_strategy": "wrapped"}}
ROW_TOKENS = 512
REPEATS = 5
# Of attention, which multiplies a block of queries with the keys that they see.
BLOCK_QUERIES = 128
NUM_OPERATORS = 6  # of those that are no part of their own, in the list below the table


@dataclasses.dataclass
class Profile:
    name: str
    step_seconds: float  # of a step that is not traced, the median
    tokens: int
    products_seconds: float  # those of the linear layers alone, back to back, the median
    attention_seconds: float  # likewise
    trace: step_trace.StepTrace  # of all its times the medians over the traced steps
    page_faults: float  # a step, of rank 0
    kernel_seconds: float  # a step: in the kernel, of all threads of rank 0

    @property
    def ratio(self) -> float:
        return self.step_seconds / (self.products_seconds + self.attention_seconds)


def attention_products(call: Attention) -> list[Product]:
    """Of rows of ROW_TOKENS: the same blocks for all heads at once, and no element copied."""

    def operand(rows: int, columns: int, turned: bool = False) -> Operand:
        strides = (rows * columns, 1, rows) if turned else (rows * columns, columns, 1)
        return ((call.heads, rows, columns), strides, call.dtype)

    found = []
    for begin in range(0, ROW_TOKENS, BLOCK_QUERIES):
        rows, keys, width = BLOCK_QUERIES, begin + BLOCK_QUERIES, call.width
        scores = Product(False, operand(rows, width), operand(width, keys, turned=True))
        by_keys = Product(False, operand(rows, keys), operand(keys, width))
        by_rows = Product(False, operand(keys, rows, turned=True), operand(rows, width))
        # Backward: scores and their gradient; that of queries; those of keys and values.
        found += [scores, scores, by_keys, by_rows, by_rows] if call.backward else [scores, by_keys]
    return found * (call.tokens // ROW_TOKENS)


def seconds_alone(products: list[Product], sides: Sides, threads: int) -> float:
    """Of all of them back to back, the median."""
    if not products:
        return 0.0
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "LD_PRELOAD": str(sides.mend)}
    done = subprocess.run(
        [sys.executable, str(PRODUCTS), str(threads), str(REPEATS)],
        input=json.dumps([dataclasses.asdict(product) for product in products]),
        env=environment,
        capture_output=True,
        text=True,
        timeout=harness.TIMEOUT_SECONDS,
        check=True,
    )
    return statistics.median(float(line) for line in done.stdout.split())


def train(spec: dict, sides: Sides, steps: int, traced: list[int]):
    """The events and the usage of rank 0."""
    fields = {"training.max_steps": steps, "training.profile_steps": traced}
    events, usages = sides.trainers(harness.set_fields(spec, fields))
    return events, usages[0]


def median_trace(paths: list[pathlib.Path]) -> step_trace.StepTrace:
    traces = [step_trace.read_trace(path) for path in paths]
    trace = traces[0]
    for seconds in ("seconds", "operators"):
        merged = getattr(trace, seconds)
        for name in merged:
            merged[name] = statistics.median(
                getattr(other, seconds).get(name, 0.0) for other in traces
            )
    return trace


def profile(size: str, dtype: str, options: argparse.Namespace, folder: pathlib.Path) -> Profile:
    sides = Sides(folder)
    threads = options.threads // options.ranks
    spec = harness.job(
        folder,
        method=FULL_ROWS,
        steps=options.steps,
        dtype=dtype,
        threads=options.threads,
        ranks=options.ranks,
        rows=options.rows,
        size=size,
    )
    # A run without traces, and one of as many steps of which the later half is traced.
    events, usage = train(spec, sides, options.steps, [])
    _, first = train(spec, sides, harness.WARMUP_STEPS, [])
    traced = list(range(options.steps // 2 + 1, options.steps + 1))
    train(spec, sides, options.steps, traced)
    trace = median_trace(
        [folder / f"out/traces/step-{step}-rank-0.json" for step in traced],
    )
    steps = [event["step"] for event in events if "step" in event]
    timed = [step["time"]["totalSeconds"] for step in steps if step["step"] > harness.WARMUP_STEPS]
    more_steps = options.steps - harness.WARMUP_STEPS
    attention = [p for call in trace.attention for p in attention_products(call)]
    return Profile(
        name=f"{size} {dtype}",
        step_seconds=statistics.median(timed),
        tokens=options.rows * ROW_TOKENS,
        products_seconds=seconds_alone(trace.products, sides, threads),
        attention_seconds=seconds_alone(attention, sides, threads),
        trace=trace,
        page_faults=(usage.ru_minflt - first.ru_minflt) / more_steps,
        kernel_seconds=(usage.ru_stime - first.ru_stime) / more_steps,
    )


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def table(profiles: list[Profile]) -> list[str]:
    def row(name: str, values) -> str:
        return f"| {name} | " + " | ".join(values) + " |"

    lines = [
        row("milliseconds", [p.name for p in profiles]),
        "|---|" + "---|" * len(profiles),
        row("**a step**", [f"**{milliseconds(p.step_seconds)}**" for p in profiles]),
        row("its products alone", [milliseconds(p.products_seconds) for p in profiles]),
        row("attention's products alone", [milliseconds(p.attention_seconds) for p in profiles]),
        row("**a step is its products times**", [f"**{p.ratio:.2f}**" for p in profiles]),
    ]
    for part in step_trace.ROWS:
        lines.append(row(part, [milliseconds(p.trace.seconds[part]) for p in profiles]))
    lines += [
        row("in the kernel, all threads", [milliseconds(p.kernel_seconds) for p in profiles]),
        row("page faults", [f"{p.page_faults:.0f}" for p in profiles]),
        row("tokens/s", [f"{p.tokens / p.step_seconds:.0f}" for p in profiles]),
        "",
    ]
    for p in profiles:
        largest = sorted(p.trace.operators.items(), key=lambda item: -item[1])[:NUM_OPERATORS]
        names = ", ".join(f"{name} {milliseconds(seconds)}" for name, seconds in largest)
        lines.append(f"Other operators, {p.name}: {names}.\n")
    return lines


def add_options(parser: argparse.ArgumentParser) -> None:
    harness.add_size(parser)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"))
    parser.add_argument("--rows", type=int, default=harness.ROWS_PER_STEP, choices=range(1, 100))
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2))


def main() -> None:
    options = harness.parse(__doc__, steps=6, extend=add_options, peers=False)
    sizes = [options.size] if options.size else ["25m", "100m"]
    dtypes = [options.dtype] if options.dtype else ["float32", "bfloat16"]
    profiles = []
    for size in sizes:
        harness.prepare_assets(size, options.corpus)
        for dtype in dtypes:
            with tempfile.TemporaryDirectory() as folder:
                profiles.append(profile(size, dtype, options, pathlib.Path(folder)))
            print(f"{profiles[-1].name}: {profiles[-1].ratio:.2f}", file=sys.stderr, flush=True)
    lines = [
        f"Steps of {options.rows} rows of {ROW_TOKENS} tokens, {options.threads} threads on"
        f" {options.ranks} ranks, {harness.processor()}, gradient checkpointing on.",
        "",
        *table(profiles),
    ]
    print("\n".join(lines))
    if not (options.no_write or options.size or options.dtype):
        harness.write_between_markers(PAGE, "step", lines[:-1])


if __name__ == "__main__":
    try:
        main()
    except harness.ProcessError as error:
        sys.exit(f"step_profile: {error}")
