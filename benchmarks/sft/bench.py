"""Times the trainer against a plain transformers loop (and TRL, where it can be imported).

    bench.py [--runs N] [--steps N] [--threads N] [--dtype float32|bfloat16] [--no-write]

Both sides train the demo's model on the same rows, one process each, in alternating runs. Their
first losses must agree, or the benchmark says that the comparison is off. Results go between the
markers of docs/benchmarks.md.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINER = ROOT / "build/bin/tessera-trainer"
LOOP = pathlib.Path(__file__).with_name("loop.py")
PAGE = ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->"
# Steps that are not timed: allocators and kernels warm up.
WARMUP_STEPS = 2
MAX_LOSS_DIFFERENCE = {"float32": 1e-4, "bfloat16": 2e-2}

# The rows both sides see.
SHAPES = {
    "full rows of 512": {"max_length": 512, "packing": True, "packing_strategy": "wrapped"},
    "documents, up to 512": {"max_length": 512, "packing": False, "packing_strategy": "bfd"},
}
# Makes MKL take its fast path on AMD processors, as the trainer does for itself.
MKL_MEND = "int mkl_serv_intel_cpu_true(void) { return 1; }"


@dataclasses.dataclass
class Run:
    tokens_per_second: float
    first_loss: float
    peak_rss_bytes: int


def job(shape: dict, options: argparse.Namespace, folder: pathlib.Path) -> dict:
    return {
        "name": "bench",
        "method": {"sft": shape},
        "model": {"path": str(ROOT / "demo/model"), "dtype": options.dtype},
        "data": {"train": str(ROOT / "demo/data/train.jsonl")},
        "training": {
            "max_steps": options.steps,
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-4,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 1.0,
            "shuffle_dataset": False,
            "save_strategy": "no",
            "output_dir": str(folder / "out"),
        },
        "memory": {"gradient_checkpointing": True},
        "parallelism": {"num_processes": 1},
        "resources": {"device": "cpu", "cpu_threads": options.threads},
    }


def measure(command: list[str], environment: dict[str, str]) -> Run:
    """Runs one side to its end. Tokens a second are the median of the steps after the first few."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
        events = [json.loads(line) for line in process.stdout if line.startswith("{")]
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            sys.exit(f"bench: {' '.join(command)} failed:\n{errors.read()[-4000:]}{events[-1:]}")
    steps = [event["step"] for event in events if "step" in event]
    timed = [step["tokensPerSecond"] for step in steps if step["step"] > WARMUP_STEPS]
    return Run(statistics.median(timed), steps[0]["loss"], usage.ru_maxrss * 1024)


def sides(input_path: pathlib.Path, mend: pathlib.Path, threads: int) -> dict[str, tuple]:
    plain = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    mended = plain | {"LD_PRELOAD": str(mend)}
    loop = [sys.executable, str(LOOP)]
    found = {
        "tessera": ([str(TRAINER), "--input", str(input_path)], plain),
        "transformers": ([*loop, "transformers", str(input_path)], plain),
        "transformers, MKL mended": ([*loop, "transformers", str(input_path)], mended),
    }
    if importlib.util.find_spec("trl"):
        found["TRL, MKL mended"] = ([*loop, "trl", str(input_path)], mended)
    return found


def compare(shape: dict, options: argparse.Namespace, folder: pathlib.Path) -> dict[str, list[Run]]:
    mend = folder / "mend.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(mend)],
        input=MKL_MEND,
        text=True,
        check=True,
    )
    input_path = folder / "run.json"
    spec = {"spec": job(shape, options, folder), "job_id": "bench", "attempt": 1}
    input_path.write_text(json.dumps(spec))
    results: dict[str, list[Run]] = {}
    for number in range(options.runs):
        for side, (command, environment) in sides(input_path, mend, options.threads).items():
            run = measure(command, environment)
            results.setdefault(side, []).append(run)
            print(
                f"run {number + 1}: {side}: {run.tokens_per_second:.0f} tokens/s", file=sys.stderr
            )
    ours = results["tessera"][0].first_loss
    for side, runs in results.items():
        if abs(runs[0].first_loss - ours) > MAX_LOSS_DIFFERENCE[options.dtype] * ours:
            sys.exit(f"bench: {side} starts at {runs[0].first_loss}, tessera at {ours}: other work")
    return results


def table(name: str, results: dict[str, list[Run]]) -> list[str]:
    lines = [f"### {name}", "", "| | tokens/s | ratio to tessera | peak RSS |", "|---|---|---|---|"]
    for side, runs in results.items():
        pairs = zip(runs, results["tessera"], strict=True)
        ratios = [run.tokens_per_second / ours.tokens_per_second for run, ours in pairs]
        speed = statistics.median(run.tokens_per_second for run in runs)
        ratio = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        rss = statistics.median(run.peak_rss_bytes for run in runs) / 1e6
        lines.append(f"| {side} | {speed:.0f} | {ratio} | {rss:.0f} MB |")
    return [*lines, ""]


def processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def write(lines: list[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", choices=MAX_LOSS_DIFFERENCE, default="float32")
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args()
    if options.steps <= WARMUP_STEPS:
        parser.error(f"--steps must be above {WARMUP_STEPS}")
    if not TRAINER.exists():
        sys.exit("bench: run `make build` first")
    subprocess.run([str(ROOT / "examples/demo/prepare.sh")], check=True)

    lines = [
        f"{options.runs} alternating runs of {options.steps} steps of 8 rows, {options.dtype},"
        f" {options.threads} threads, {processor()}, the demo's model (26M parameters).",
        "",
    ]
    for name, shape in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            lines += table(name, compare(shape, options, pathlib.Path(folder)))
    print("\n".join(lines))
    if not options.no_write:
        write(lines[:-1])


if __name__ == "__main__":
    main()
