"""What benchmarks share: jobs as trainer inputs, processes whose memory is watched, and pages with
results between markers.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/support"))
from job_fields import set_fields
from trainer_inputs import free_port, write_inputs

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("TESSERA_BUILD", ROOT / "build"))
TRAINER = BUILD / "bin/tessera-trainer"
PEERS = ROOT / "benchmarks/training/peers.py"
MAKE_ASSETS = ROOT / "benchmarks/training/make_assets.py"
SIZES = ("25m", "100m", "tiny")  # of make_assets.py
# Steps that are not timed: allocators and kernels warm up.
WARMUP_STEPS = 1
ROWS_PER_STEP = 8
# No run of these few steps comes near it.
TIMEOUT_SECONDS = 1800
POLL_SECONDS = 0.05
MKL_MEND = "int mkl_serv_intel_cpu_true(void) { return 1; }"


def assets_of(size: str) -> pathlib.Path:
    """Where the model of that size is, and what it is trained on."""
    return BUILD / "bench" / size


ASSETS = assets_of("25m")


@dataclasses.dataclass
class Run:
    tokens_per_second: float
    losses: list[float]  # of each step
    peak_bytes: int  # above what the process held once its libraries were loaded
    memory: dict = dataclasses.field(default_factory=dict)  # the last MemorySnapshot, if there is


def parse(doc: str, steps: int, extend, peers: bool = True) -> argparse.Namespace:
    """The options of a benchmark; `extend` adds its own to the parser."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if peers:
        parser.add_argument("--peers", required=True, metavar="PYTHON", help="one with TRL")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-write", action="store_true", help="leave the page as it is")
    extend(parser)
    options = parser.parse_args()
    if options.steps <= WARMUP_STEPS:
        parser.error(f"--steps must be above {WARMUP_STEPS}")
    return options


def add_runs(parser: argparse.ArgumentParser, default: int) -> None:
    parser.add_argument("--runs", type=int, default=default, choices=range(1, 100), metavar="N")


def chosen(rows: list, text: str) -> list:
    """The rows whose names hold the text; ends the program where there are none."""
    found = [row for row in rows if text in row.name]
    if not found:
        sys.exit(f"bench: --only {text}: there is none among {[row.name for row in rows]}")
    return found


def job(
    folder: pathlib.Path,
    *,
    method: dict,  # {"sft": {...}}: the method and what it sets beside max_length
    steps: int,
    dtype: str,
    threads: int,
    ranks: int = 1,
    rows: int = ROWS_PER_STEP,
    documents: str = "documents",  # a file of make_assets.py
    size: str = "25m",
    fields: dict | None = None,
):
    """The JobSpec, as ProtoJSON, of a run on rows or documents of up to 512 tokens; `fields` are
    set by their paths."""
    ((kind, options),) = method.items()
    spec = {
        "name": "bench",
        "method": {kind: {"max_length": 512} | options},
        "model": {"path": str(assets_of(size) / "model"), "dtype": dtype},
        "data": {"train": str(assets_of(size) / f"{documents}.jsonl")},
        "training": {
            "max_steps": steps,
            "per_device_train_batch_size": rows // ranks,
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
    return set_fields(spec, fields or {})


class ProcessError(Exception):
    """A program that was run failed; with the end of what it printed."""


def run_processes(
    commands: list[list[str]], environment: dict[str, str], folder: pathlib.Path
) -> tuple[list[dict], list[resource.struct_rusage]]:
    """Runs them side by side. Returns the events of the first, and what each used. Where one fails,
    or time runs out, none is left running."""
    processes = []
    try:
        for i, command in enumerate(commands):
            with (folder / f"{i}.out").open("w") as out, (folder / f"{i}.err").open("w") as err:
                processes.append(subprocess.Popen(command, stdout=out, stderr=err, env=environment))
        usages = await_all(processes, commands, folder)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    lines = (folder / "0.out").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith('{"')], usages


def await_all(
    processes: list[subprocess.Popen], commands: list[list[str]], folder: pathlib.Path
) -> list[resource.struct_rusage]:
    give_up = time.monotonic() + TIMEOUT_SECONDS
    usages = [None] * len(processes)
    waits = set(range(len(processes)))
    while waits:
        if time.monotonic() > give_up:
            raise ProcessError(f"no end of {commands[min(waits)]} within {TIMEOUT_SECONDS} s")
        time.sleep(POLL_SECONDS)
        for i in sorted(waits):
            pid, status, usage = os.wait4(processes[i].pid, os.WNOHANG)
            if pid == 0:
                continue
            processes[i].returncode = os.waitstatus_to_exitcode(status)
            if processes[i].returncode != 0:
                tail = (folder / f"{i}.out").read_text()[-500:] + (folder / f"{i}.err").read_text()
                raise ProcessError(f"{' '.join(commands[i])} failed:\n{tail[-4000:]}")
            usages[i] = usage
            waits.remove(i)
    return usages


def peak_bytes(usages: list[resource.struct_rusage]) -> int:
    """The largest resident set of one of them."""
    return max(usage.ru_maxrss for usage in usages) * 1024


def ask_trainer(*arguments: str) -> dict:
    """What the trainer prints about a job that it does not train."""
    command = [str(TRAINER), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=True
        )
    except subprocess.CalledProcessError as error:
        raise ProcessError(f"{' '.join(command)} failed:\n{error.stderr[-4000:]}") from None
    except subprocess.TimeoutExpired:
        raise ProcessError(f"no end of {command} within {TIMEOUT_SECONDS} s") from None
    return json.loads(done.stdout)


def summarise(events: list[dict], peak_bytes: int) -> Run:
    """Tokens a second are the median of the steps after the first ones."""
    steps = [event["step"] for event in events if "step" in event]
    timed = [step["tokensPerSecond"] for step in steps if step["step"] > WARMUP_STEPS]
    snapshots = [event["memory"] for event in events if "owners" in event.get("memory", {})]
    speed = statistics.median(timed or [steps[-1]["tokensPerSecond"]])
    losses = [step["loss"] for step in steps]
    return Run(speed, losses, peak_bytes, snapshots[-1] if snapshots else {})


def inputs_of(spec: dict, folder: pathlib.Path) -> list[str]:
    """Paths of one input a rank."""
    ranks = spec["parallelism"]["num_processes"]
    return [str(path) for path in write_inputs(spec, ranks, folder, job_id="bench")]


class Sides:
    """The programs that are compared. `folder` is theirs to write in; `peers` is the peers' Python,
    where they are run."""

    def __init__(self, folder: pathlib.Path, peers: str = ""):
        self.peers = peers
        self.folder = folder
        self.mend = folder / "mend.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(self.mend)],
            input=MKL_MEND,
            text=True,
            check=True,
        )
        _, usages = run_processes([[str(TRAINER), "--help"]], dict(os.environ), folder)
        self.imported_bytes = peak_bytes(usages)

    def tessera(self, spec: dict) -> Run:
        events, usages = self.trainers(spec)
        return summarise(events, peak_bytes(usages) - self.imported_bytes)

    def trainers(self, spec: dict) -> tuple[list[dict], list[resource.struct_rusage]]:
        """The events of rank 0, and what each rank used."""
        commands = [[str(TRAINER), "--input", path] for path in inputs_of(spec, self.folder)]
        return run_processes(commands, self._environment(spec), self.folder)

    def peer(self, spec: dict, name: str, mended: bool) -> Run:
        inputs = inputs_of(spec, self.folder)
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


def add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, help="of the model")
    parser.add_argument(
        "--corpus", type=pathlib.Path, help="documents to train on; default: the demo's"
    )


def prepare_assets(size: str = SIZES[0], corpus: pathlib.Path | None = None) -> None:
    """A model, its tokenizer and documents in assets_of(size), as make_assets.py has them."""
    if not TRAINER.exists():
        sys.exit("bench: run `make build` first")
    out = assets_of(size)
    if all((out / f"{name}.jsonl").exists() for name in ("documents", "pairs", "labelled")):
        return
    if corpus is None:
        subprocess.run([str(ROOT / "examples/demo/prepare.sh")], check=True)
        corpus = ROOT / "demo/data/vocabulary.jsonl"
    python = str(ROOT / ".venv/bin/python")
    subprocess.run([python, str(MAKE_ASSETS), str(corpus), str(out), "--size", size], check=True)
