"""Items on faults: ranks that are killed, and what follows."""

import json
import pathlib
import signal
import subprocess
import time

import trials
from machine import Machine, series
from outcomes import DiffError, Seen
from trainer_inputs import write_inputs

STEPS, SAVED_EVERY, KILLED_AFTER = 12, 4, 6
# Of a peer: it waits for resources.hang_timeout and ten seconds more at most.
HANG_TIMEOUT_SECONDS = 20
PEER_SECONDS = 60
POLL_SECONDS = 0.02


def saving_spec(machine: Machine, name: str, world: int, **training) -> dict:
    options = {"max_steps": STEPS, "save_strategy": "steps", "save_steps": SAVED_EVERY}
    fields = {"resources.hang_timeout": f"{HANG_TIMEOUT_SECONDS}s"}
    spec = machine.spec(name, world=world, train="mixed", fields=fields, **(options | training))
    return spec | {"training": spec["training"] | {"async_save": False}}


def start(machine: Machine, spec: dict, directory: pathlib.Path) -> list[subprocess.Popen]:
    directory.mkdir(parents=True, exist_ok=True)
    world = spec["parallelism"]["num_processes"]
    ranks = []
    for path in write_inputs(spec, world, directory, job_id="parity"):
        with path.with_suffix(".out").open("wb") as out:
            ranks.append(
                subprocess.Popen(
                    [machine.trainer, "--input", path], stdout=out, stderr=subprocess.DEVNULL
                )
            )
    return ranks


def wait_for_step(rank: subprocess.Popen, output: pathlib.Path, step: int) -> None:
    """Until it has told of that step."""
    while rank.poll() is None:
        # Without the last line, which may be half written.
        for line in output.read_text().split("\n")[:-1]:
            if json.loads(line).get("step", {}).get("step", 0) >= step:
                return
        time.sleep(POLL_SECONDS)
    raise DiffError(f"the rank ended with {rank.returncode} before step {step}")


def kill(machine: Machine, name: str, world: int) -> tuple[float, str]:
    """kill -9 of the last rank in mid-run. Seconds until all others had ended, and what rank 0
    said last."""
    directory = machine.scratch / f"{name}-ranks"
    ranks = start(machine, saving_spec(machine, name, world), directory)
    try:
        wait_for_step(ranks[0], directory / "rank0.out", KILLED_AFTER)
        ranks[-1].send_signal(signal.SIGKILL)
        begin = time.monotonic()
        for rank in ranks:
            rank.wait(timeout=PEER_SECONDS)
        return time.monotonic() - begin, (directory / "rank0.out").read_text().splitlines()[-1]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def resume(machine: Machine, name: str, world: int) -> str:
    """The whole run against the one that was killed and goes on."""
    whole = machine.train(saving_spec(machine, f"{name}-whole", world))
    again = machine.train(saving_spec(machine, name, world, resume_from_checkpoint="latest"))
    resumed = int(again[0]["started"].get("resumedStep", 0))
    if resumed < SAVED_EVERY:
        raise DiffError(f"it went on from step {resumed}")
    if series(again, "loss") != series(whole, "loss")[resumed:]:
        raise DiffError("the losses differ from those of a run that was not killed")
    one, other = (trials.files_of(trials.final_directory(events)) for events in (whole, again))
    weights = [file for file in one if file.endswith(".safetensors")]
    if not weights or any(one[file] != other.get(file) for file in weights):
        raise DiffError("the final weights differ from those of a run that was not killed")
    return f"went on from step {resumed} of {STEPS} to the same losses and weights, to the bit"


def killed(machine: Machine) -> Seen:
    """kill -9 of a rank in mid-run: the job goes on from its checkpoint to the same bits"""
    kill(machine, "killed", 1)
    return Seen(resume(machine, "killed", 1))


def lost_peer(machine: Machine) -> Seen:
    """kill -9 of one of two ranks: the other ends by itself, and the job goes on as before"""
    machine.need_devices(2)
    seconds, last = kill(machine, "lost", 2)
    failure = json.loads(last).get("failed", {})
    if failure.get("kind") != "NETWORK":
        raise DiffError(f"rank 0 ended with {last[:300]}")
    went_on = resume(machine, "lost", 2)
    return Seen(f"the peer ended after {seconds:.1f} s; it {went_on}", {"seconds": seconds})
