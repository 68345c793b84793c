"""Runs the ranks of one job by hand: a tessera-trainer process each, no service."""

import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from trainer_inputs import write_inputs

TIMEOUT_SECONDS = 240


class RunError(Exception):
    """A rank failed, hung, or said something that is not an event."""


def metric(event, name):
    """A number of a step or evaluation event: a field of its own, or one that the method measures.

    ProtoJSON leaves out zeros and writes 64-bit integers as strings.
    """
    return event.get(name, event.get("metrics", {}).get(name, 0))


def start_process(command, out, err):
    """A process that writes to these files."""
    with out.open("wb") as out, err.open("wb") as err:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)


def run(trainer, spec, world, directory, start=start_process):
    """Trains `spec` (a JobSpec in ProtoJSON) on `world` ranks; returns rank 0's events.

    What the ranks read and write stays in `directory`.
    """
    directory = pathlib.Path(directory)
    ranks = []
    try:
        for path in write_inputs(spec, world, directory, job_id="parity"):
            command = [trainer, "--input", path]
            ranks.append(start(command, path.with_suffix(".out"), path.with_suffix(".err")))
        await_all(ranks, directory)
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return read_events(directory / "rank0.out")


def await_all(ranks, directory):
    deadline = time.monotonic() + TIMEOUT_SECONDS
    for rank, process in enumerate(ranks):
        try:
            code = process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise RunError(
                f"rank {rank} did not end in {TIMEOUT_SECONDS} s\n{tails(directory, len(ranks))}"
            ) from None
        if code != 0:
            raise RunError(f"rank {rank} ended with {code}\n{tails(directory, len(ranks))}")


def tails(directory, world):
    """The last lines each rank wrote."""
    return "\n".join(
        f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").split("\n")[-12:])
        for rank in range(world)
        for path in (directory / f"rank{rank}.out", directory / f"rank{rank}.err")
    )


def read_events(path):
    events = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            raise RunError(f"{path.name} holds a line that is no event: {line[:200]}") from None
    if not events or "finished" not in events[-1]:
        raise RunError(f"{path.name} does not end with a finished event")
    return events
