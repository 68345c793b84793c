"""What benchmarks share: jobs as trainer inputs, processes whose memory is watched, and pages with
results between markers.
"""

import dataclasses
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAINER = ROOT / "build/bin/tessera-trainer"
PEERS = ROOT / "benchmarks/sft/peers.py"
MAKE_ASSETS = ROOT / "benchmarks/sft/make_assets.py"
ASSETS = ROOT / "build/bench"
# Steps that are not timed: allocators and kernels warm up.
WARMUP_STEPS = 1
ROWS_PER_STEP = 8
MKL_MEND = "int mkl_serv_intel_cpu_true(void) { return 1; }"


@dataclasses.dataclass
class Run:
    tokens_per_second: float
    first_loss: float
    peak_bytes: int  # above what the process held once its libraries were loaded
    memory: dict = dataclasses.field(default_factory=dict)  # the last MemorySnapshot, if there is


def job(folder: pathlib.Path, *, sft: dict, steps: int, dtype: str, threads: int, ranks: int = 1):
    """The JobSpec, as ProtoJSON, of a run on full rows or documents of up to 512 tokens."""
    return {
        "name": "bench",
        "method": {"sft": {"max_length": 512} | sft},
        "model": {"path": str(ASSETS / "model"), "dtype": dtype},
        "data": {"train": str(ASSETS / "documents.jsonl")},
        "training": {
            "max_steps": steps,
            "per_device_train_batch_size": ROWS_PER_STEP // ranks,
            "learning_rate": 1e-4,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 1.0,
            "logging_steps": 1,
            "shuffle_dataset": False,
            "save_strategy": "no",
            "output_dir": str(folder / "out"),
        },
        "memory": {"gradient_checkpointing": True},
        "parallelism": {"num_processes": ranks},
        "resources": {"device": "cpu", "cpu_threads": threads // ranks},
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_inputs(spec: dict, folder: pathlib.Path) -> list[str]:
    """One input a rank; returns their paths."""
    port = free_port()
    ranks = spec["parallelism"]["num_processes"]
    paths = []
    for rank in range(ranks):
        path = folder / f"rank{rank}.json"
        contents = {
            "spec": spec,
            "job_id": "bench",
            "attempt": 1,
            "rank": rank,
            "local_rank": rank,
            "local_world_size": ranks,
            "device_index": rank,
            "rendezvous": {"address": "127.0.0.1", "port": port},
        }
        path.write_text(json.dumps(contents))
        paths.append(str(path))
    return paths


class ProcessError(Exception):
    """A program that was run failed; with the end of what it printed."""


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
            raise ProcessError(f"{' '.join(commands[i])} failed:\n{tail[-4000:]}")
        peaks.append(usage.ru_maxrss * 1024)
    lines = (folder / "0.out").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"')], peaks


def summarise(events: list[dict], peak_bytes: int) -> Run:
    """Tokens a second are the median of the steps after the first ones."""
    steps = [event["step"] for event in events if "step" in event]
    timed = [step["tokensPerSecond"] for step in steps if step["step"] > WARMUP_STEPS]
    snapshots = [event["memory"] for event in events if "owners" in event.get("memory", {})]
    speed = statistics.median(timed or [steps[-1]["tokensPerSecond"]])
    return Run(speed, steps[0]["loss"], peak_bytes, snapshots[-1] if snapshots else {})


class Sides:
    """The programs that are compared. `folder` is theirs to write in."""

    def __init__(self, peers: str, folder: pathlib.Path):
        self.peers = peers
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

    def tessera(self, spec: dict) -> Run:
        inputs = write_inputs(spec, self.folder)
        commands = [[str(TRAINER), "--input", path] for path in inputs]
        events, peaks = run_processes(commands, self._environment(spec), self.folder)
        return summarise(events, max(peaks) - self.imported_bytes)

    def peer(self, spec: dict, name: str, mended: bool) -> Run:
        inputs = write_inputs(spec, self.folder)
        environment = self._environment(spec)
        if mended:
            environment |= {"LD_PRELOAD": str(self.mend)}
        command = [self.peers]
        ranks = spec["parallelism"]["num_processes"]
        if ranks > 1:
            command += ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
            command += ["--master-addr=127.0.0.1", f"--master-port={free_port()}"]
        command += [str(PEERS), name, inputs[0]]
        events, _ = run_processes([command], environment, self.folder)
        memory = next(event["memory"] for event in events if "memory" in event)
        return summarise(events, memory["peakBytes"] - memory["importedBytes"])

    @staticmethod
    def _environment(spec: dict) -> dict[str, str]:
        return os.environ | {"OMP_NUM_THREADS": str(spec["resources"]["cpu_threads"])}


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def write_between_markers(page: pathlib.Path, name: str, lines: list[str]) -> None:
    begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    after = rest.split(end)[1]
    page.write_text(before + begin + "\n".join(lines) + "\n" + end + after, encoding="utf-8")


def prepare_assets() -> None:
    """A model, its tokenizer and documents in ASSETS, as make_assets.py has them."""
    if not TRAINER.exists():
        sys.exit("bench: run `make build` first")
    if (ASSETS / "documents.jsonl").exists():
        return
    subprocess.run([str(ROOT / "examples/demo/prepare.sh")], check=True)
    corpus = ROOT / "demo/data/vocabulary.jsonl"
    python = str(ROOT / ".venv/bin/python")
    subprocess.run([python, str(MAKE_ASSETS), str(corpus), str(ASSETS)], check=True)
