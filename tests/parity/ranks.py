"""Runs the ranks of one job by hand: a tessera-trainer process each, no service."""

import json
import pathlib
import socket
import subprocess
import time

TIMEOUT_SECONDS = 240


class RunError(Exception):
    """A rank failed, hung, or said something that is not an event."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(trainer, spec, world, directory):
    """Trains `spec` (a JobSpec in ProtoJSON) on `world` ranks; returns rank 0's events.

    What the ranks read and write stays in `directory`.
    """
    directory = pathlib.Path(directory)
    port = free_port()
    ranks = []
    try:
        for rank in range(world):
            path = directory / f"rank{rank}.json"
            path.write_text(
                json.dumps(
                    {
                        "spec": spec,
                        "job_id": "parity",
                        "attempt": 1,
                        "rank": rank,
                        "local_rank": rank,
                        "local_world_size": world,
                        "device_index": rank,
                        "rendezvous": {"address": "127.0.0.1", "port": port},
                    }
                )
            )
            with (
                path.with_suffix(".out").open("wb") as out,
                path.with_suffix(".err").open("wb") as err,
            ):
                ranks.append(
                    subprocess.Popen(
                        [trainer, "--input", path], stdin=subprocess.DEVNULL, stdout=out, stderr=err
                    )
                )
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
