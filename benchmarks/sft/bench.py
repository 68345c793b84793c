"""Times the trainer against its Python peers, on the same work, in alternating runs.

    bench.py --peers PYTHON [--runs N] [--steps N] [--threads N] [--dtype float32|bfloat16]
             [--only TEXT] [--no-write]

PYTHON imports TRL (scripts/setup-bench.sh makes such an interpreter). The peers run twice: as
shipped, and with the one symbol preloaded that makes MKL take its fast path on AMD processors, as
the trainer does by itself. First losses must agree, or the benchmark says that the work differs.
Results go between the markers of docs/benchmarks.md.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINER = ROOT / "build/bin/tessera-trainer"
PEERS = pathlib.Path(__file__).with_name("peers.py")
MAKE_ASSETS = pathlib.Path(__file__).with_name("make_assets.py")
ASSETS = ROOT / "build/bench"
PAGE = ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->"
# Steps that are not timed: allocators and kernels warm up.
WARMUP_STEPS = 1
ROWS_PER_STEP = 8
MAX_LOSS_DIFFERENCE = {"float32": 1e-4, "bfloat16": 2e-2}
MKL_MEND = "int mkl_serv_intel_cpu_true(void) { return 1; }"


@dataclasses.dataclass
class Work:
    name: str
    sft: dict
    peer: str
    world_size: int = 1


WORKS = [
    Work("full rows of 512", {"packing": True, "packing_strategy": "wrapped"}, "trl"),
    Work("uneven documents", {"packing": False, "packing_strategy": "bfd"}, "trl"),
    Work("uneven documents, packed", {"packing": True, "packing_strategy": "bfd"}, "trl"),
    Work(
        "full rows of 512, two ranks",
        {"packing": True, "packing_strategy": "wrapped"},
        "fully_shard",
        world_size=2,
    ),
]


@dataclasses.dataclass
class Run:
    tokens_per_second: float
    first_loss: float
    peak_bytes: int  # above what the process held once its libraries were loaded


def job(work: Work, options: argparse.Namespace, folder: pathlib.Path) -> dict:
    return {
        "name": "bench",
        "method": {"sft": {"max_length": 512} | work.sft},
        "model": {"path": str(ASSETS / "model"), "dtype": options.dtype},
        "data": {"train": str(ASSETS / "documents.jsonl")},
        "training": {
            "max_steps": options.steps,
            "per_device_train_batch_size": ROWS_PER_STEP // work.world_size,
            "learning_rate": 1e-4,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 1.0,
            "logging_steps": 1,
            "shuffle_dataset": False,
            "save_strategy": "no",
            "output_dir": str(folder / "out"),
        },
        "memory": {"gradient_checkpointing": True},
        "parallelism": {"num_processes": work.world_size},
        "resources": {"device": "cpu", "cpu_threads": options.threads // work.world_size},
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_inputs(work: Work, options: argparse.Namespace, folder: pathlib.Path) -> list[str]:
    """One input a rank; returns their paths."""
    port = free_port()
    paths = []
    for rank in range(work.world_size):
        path = folder / f"rank{rank}.json"
        contents = {
            "spec": job(work, options, folder),
            "job_id": "bench",
            "attempt": 1,
            "rank": rank,
            "local_rank": rank,
            "local_world_size": work.world_size,
            "device_index": rank,
            "rendezvous": {"address": "127.0.0.1", "port": port},
        }
        path.write_text(json.dumps(contents))
        paths.append(str(path))
    return paths


def run_processes(
    commands: list[list[str]], environment: dict[str, str], folder: pathlib.Path
) -> tuple[list[dict], list[int]]:
    """Runs them side by side. Returns the events of the first, and the peak RSS of each."""
    processes = []
    for i, command in enumerate(commands):
        with (folder / f"{i}.out").open("w") as out, (folder / f"{i}.err").open("w") as err:
            processes.append(subprocess.Popen(command, stdout=out, stderr=err, env=environment))
    peaks = []
    for i, process in enumerate(processes):
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            for other in processes:
                other.kill()
            tail = (folder / f"{i}.out").read_text()[-500:] + (folder / f"{i}.err").read_text()
            sys.exit(f"bench: {' '.join(commands[i])} failed:\n{tail[-4000:]}")
        peaks.append(usage.ru_maxrss * 1024)
    lines = (folder / "0.out").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"')], peaks


def summarise(events: list[dict], peak_bytes: int) -> Run:
    """Tokens a second are the median of the steps after the first ones."""
    steps = [event["step"] for event in events if "step" in event]
    timed = [step["tokensPerSecond"] for step in steps if step["step"] > WARMUP_STEPS]
    return Run(statistics.median(timed), steps[0]["loss"], peak_bytes)


class Sides:
    """The programs that are compared."""

    def __init__(self, options: argparse.Namespace, folder: pathlib.Path):
        self.options = options
        self.folder = folder
        self.mend = folder / "mend.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(self.mend)],
            input=MKL_MEND,
            text=True,
            check=True,
        )
        _, peaks = run_processes([[str(TRAINER), "--help"]], dict(os.environ), folder)
        self.imported_bytes = peaks[0]

    def run(self, side: str, work: Work) -> Run:
        inputs = write_inputs(work, self.options, self.folder)
        threads = str(self.options.threads // work.world_size)
        environment = os.environ | {"OMP_NUM_THREADS": threads}
        if side == "tessera":
            commands = [[str(TRAINER), "--input", path] for path in inputs]
            events, peaks = run_processes(commands, environment, self.folder)
            return summarise(events, max(peaks) - self.imported_bytes)
        if side.endswith("mended"):
            environment |= {"LD_PRELOAD": str(self.mend)}
        command = [self.options.peers]
        if work.world_size > 1:
            command += ["-m", "torch.distributed.run", f"--nproc-per-node={work.world_size}"]
            command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
        command += [str(PEERS), work.peer, inputs[0]]
        events, _ = run_processes([command], environment, self.folder)
        memory = next(event["memory"] for event in events if "memory" in event)
        return summarise(events, memory["peakBytes"] - memory["importedBytes"])


def compare(sides: Sides, work: Work) -> dict[str, list[Run]]:
    results: dict[str, list[Run]] = {}
    for number in range(sides.options.runs):
        for side in ("tessera", work.peer, f"{work.peer}, mended"):
            run = sides.run(side, work)
            results.setdefault(side, []).append(run)
            line = f"{work.name}, run {number + 1}: {side}: {run.tokens_per_second:.0f} tokens/s"
            print(line, file=sys.stderr, flush=True)
    ours = results["tessera"][0].first_loss
    for side, runs in results.items():
        if abs(runs[0].first_loss - ours) > MAX_LOSS_DIFFERENCE[sides.options.dtype] * ours:
            sys.exit(f"bench: {side} starts at {runs[0].first_loss}, tessera at {ours}: other work")
    return results


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


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


def prepare_assets() -> None:
    if (ASSETS / "documents.jsonl").exists():
        return
    subprocess.run([str(ROOT / "examples/demo/prepare.sh")], check=True)
    corpus = ROOT / "demo/data/vocabulary.jsonl"
    python = str(ROOT / ".venv/bin/python")
    subprocess.run([python, str(MAKE_ASSETS), str(corpus), str(ASSETS)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peers", required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=MAX_LOSS_DIFFERENCE, default="float32")
    parser.add_argument("--only", default="", help="run the works whose names hold this")
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args()
    if options.steps <= WARMUP_STEPS:
        parser.error(f"--steps must be above {WARMUP_STEPS}")
    if not TRAINER.exists():
        sys.exit("bench: run `make build` first")
    prepare_assets()

    lines = [
        f"{options.runs} alternating runs of {options.steps} steps of {ROWS_PER_STEP} rows of up to"
        f" 512 tokens, {options.dtype}, {options.threads} threads in all, {processor()}, a Llama of"
        " 25M parameters, gradient checkpointing on.",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        sides = Sides(options, pathlib.Path(folder))
        for work in WORKS:
            if options.only in work.name:
                lines += table(work.name, compare(sides, work))
    print("\n".join(lines))
    if not options.no_write:
        write(lines[:-1])


if __name__ == "__main__":
    main()
