#!/usr/bin/env python3
"""launcher: slurm, with a real slurmctld and two slurmd.

slurm_test.py --bin DIR --assets DIR [--all | SCENARIO ...]

Whatever happens on the way, the job ends with the losses and the very weights of one that our own
scheduler placed, and Slurm was given exactly as many jobs as were needed.
"""

import contextlib
import os
import pathlib
import signal
import sqlite3
import tempfile

from launched import (
    STEPS,
    Coordinator,
    check_same,
    cluster,
    expect,
    follow,
    get,
    launched_job,
    losses_of,
    reasons_of,
    run_scenarios,
    submit,
    wait_for_reason,
    wait_for_state,
    wait_until,
)
from slurm import Slurm, free_ports, require_slurm


@contextlib.contextmanager
def service_with(options, *flags, tls=False, devices=1, gpus=0):
    """(service, coordinator, slurm), the coordinator told of the cluster."""
    with (
        tempfile.TemporaryDirectory(prefix="slurm-") as directory,
        Slurm(directory, gpus=gpus) as slurm,
        cluster(options.bin) as service,
    ):
        address = service.address
        if tls:
            address = f"127.0.0.1:{free_ports(1)[0]}"
            flags = ("--listen", address, *flags)
        flags = (
            *("--slurm", str(service.directory / "slurm"), "--slurm-devices", str(devices)),
            *("--slurm-scratch", str(service.directory / "scratch")),
            *("--launcher-coordinator", address, *flags),
        )
        (service.directory / "scratch").mkdir()
        with Coordinator(service, flags, slurm.environment) as coordinator:
            yield service, coordinator, slurm


def check_clean(service, slurm, killed=False):
    """Nothing is left: no job in Slurm, no file, no node, no process."""
    wait_until(lambda: not slurm.live(), f"Slurm's jobs to end: {slurm.jobs()}")
    kept = service.directory / "slurm"
    wait_until(lambda: not list(kept.iterdir()), f"{kept} to be empty")
    wait_until(lambda: not service.query("nodes"), "the allocations' nodes to be forgotten")
    scratch = service.directory / "scratch"
    # What an agent that was killed leaves there is Slurm's epilog's to delete.
    wait_until(lambda: killed or not list(scratch.iterdir()), f"{scratch} to be empty")
    expect(not service.pids("tessera-agent"), "an agent is left")


def job_of_two_machines(options, baseline):
    """Over TLS: each agent joins with a token of its own."""
    with service_with(options, tls=True) as (service, _, slurm):
        output = service.directory / "output"
        job = submit(service, "two", launched_job(options, output, "slurm"))
        events = follow(service, job)
        check_same(events, output, baseline)
        placed = get(service, job)
        expect(placed["attempt"] == 1, f"{placed}")
        starts = [reason for reason in reasons_of(events) if reason.startswith("starts 2 ranks on")]
        expect(len(starts) == 1 and starts[0].count("tessera-") == 2, f"{reasons_of(events)}")
        check_clean(service, slurm)
        jobs = slurm.jobs()
        expect([(j[1], j[3]) for j in jobs] == [("COMPLETED", job)], f"Slurm had {jobs}")
        listed = service.call("token", "list").stdout
        expect("tessera-" not in listed, f"credentials are left: {listed}")


def lost_answers(options, baseline):
    """sbatch submits and says that it failed; then the coordinator is killed while it submits."""
    with service_with(options) as (service, coordinator, slurm):
        once = slurm.directory / "once"
        slurm.wrap(
            "sbatch",
            f'if [ ! -e {once} ]; then touch {once}; "$real" "$@" >/dev/null;'
            ' echo "sbatch: error: Batch job submission failed: Socket timed out" >&2; exit 1; fi\n'
            'exec "$real" "$@"',
        )
        output = service.directory / "output"
        job = submit(service, "lost", launched_job(options, output, "slurm"))
        check_same(follow(service, job), output, baseline)
        check_clean(service, slurm)
        expect(len(slurm.jobs()) == 1, f"Slurm had {slurm.jobs()}")

        slurm.wrap("sbatch", '"$real" "$@" && kill -9 $PPID')
        output = service.directory / "again"
        job = submit(service, "killed", launched_job(options, output, "slurm"))
        coordinator.process.wait(60)
        slurm.unwrap("sbatch")
        coordinator.start()
        check_same(follow(service, job), output, baseline)
        check_clean(service, slurm)
        states = [j[1] for j in slurm.jobs()]
        expect(states == ["COMPLETED"] * 2, f"Slurm had {slurm.jobs()}")


def ended_by_slurm(options, baseline):
    """An operator's scancel: SIGTERM, at which ranks write a checkpoint; the job goes on."""
    with service_with(options) as (service, _, slurm):
        output = service.directory / "output"
        job = submit(service, "ended", launched_job(options, output, "slurm"))
        events = follow(service, job, lambda: slurm.call("scancel", slurm.live()[0][0]))
        check_same(events, output, baseline)
        reasons = reasons_of(events)
        expect(any("slurm ends job" in reason for reason in reasons), f"{reasons}")
        expect(any("goes on from the checkpoint" in reason for reason in reasons), f"{reasons}")
        check_clean(service, slurm)
        expect([j[1] for j in slurm.jobs()] == ["CANCELLED", "COMPLETED"], f"{slurm.jobs()}")
        expect(get(service, job)["attempt"] == 2, "not one restart")


def left_by_one_machine(options, baseline):
    """SIGTERM at one machine alone, as where it is drained at once: the other agent stays, and the
    machines of the allocation are given back all the same. Nothing more is started on them."""
    with service_with(options) as (service, _, slurm):
        output = service.directory / "output"
        job = submit(service, "left", launched_job(options, output, "slurm", max_restarts=1))

        def drain():
            agents = [pid for pid in service.pids("tessera-agent") if is_agent(pid, 1)]
            expect(len(agents) == 1, f"agents: {agents}")
            os.kill(agents[0], signal.SIGTERM)

        events = follow(service, job, drain)
        check_same(events, output, baseline)
        expect(get(service, job)["attempt"] == 2, f"not one restart: {reasons_of(events)}")
        check_clean(service, slurm)
        expect(len(slurm.jobs()) == 2, f"Slurm had {slurm.jobs()}")


def is_agent(pid, index):
    """Whether the process is the agent of that number in its allocation."""
    environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return f"SLURM_PROCID={index}".encode() in environment


def killed_agent(options, baseline):
    """An agent dies: its step ends, and with it the whole of the Slurm job."""
    with service_with(options) as (service, _, slurm):
        output = service.directory / "output"
        spec = launched_job(options, output, "slurm")
        spec["training"]["save_steps"] = 10
        job = submit(service, "agentless", spec)
        events = follow(
            service, job, lambda: os.kill(service.pids("tessera-agent")[0], signal.SIGKILL)
        )
        check_same(events, output, baseline)
        expect(get(service, job)["attempt"] == 2, "not one restart")
        check_clean(service, slurm, killed=True)
        expect(len(slurm.jobs()) == 2, f"Slurm had {slurm.jobs()}")


def lost_machine(options, baseline):
    """A machine is gone with all that ran on it. Its ranks may be alive, for all that Slurm knows:
    the job starts again once they have ended themselves, on machines that are there."""
    with service_with(options) as (service, _, slurm):
        output = service.directory / "output"
        spec = launched_job(options, output, "slurm")
        spec["training"]["save_steps"] = 10
        job = submit(service, "machineless", spec)

        def lose():
            slurm.end_node("n2")
            slurm.call("scontrol", "update", "nodename=n2", "state=down", "reason=gone")
            slurm.start_node("n2")
            wait_until(
                lambda: (
                    slurm.call("scontrol", "update", "nodename=n2", "state=resume", check=False)
                    or slurm.states().count("idle")
                ),
                "n2 to be back",
            )

        events = follow(service, job, lose)
        check_same(events, output, baseline)
        text = " ".join(reasons_of(events))
        expect("NODE_FAIL" in text or "was not heard from" in text or "rank" in text, text)
        check_clean(service, slurm, killed=True)


def suspended(options, baseline):
    """Suspended, it gives its machines back; resumed, it asks for others."""
    with service_with(options) as (service, coordinator, slurm):
        output = service.directory / "output"
        job = submit(service, "pausing", launched_job(options, output, "slurm"))

        def pause():
            expect(service.call("suspend", job).returncode == 0, "suspend failed")
            wait_for_state(service, job, "SUSPENDED")
            check_clean(service, slurm)
            coordinator.crash()
            coordinator.start()
            expect(service.call("resume", job).returncode == 0, "resume failed")

        check_same(follow(service, job, pause), output, baseline)
        check_clean(service, slurm)
        expect([j[1] for j in slurm.jobs()] == ["COMPLETED"] * 2, f"{slurm.jobs()}")


def cancelled(options, _baseline):
    """While it waits in Slurm's queue, and while it runs."""
    with service_with(options, "--slurm-cpus", "2") as (service, _, slurm):
        first = submit(
            service,
            "first",
            launched_job(options, service.directory / "1", "slurm", steps=100_000),
        )
        wait_for_state(service, first, "RUNNING")
        second = submit(service, "second", launched_job(options, service.directory / "2", "slurm"))
        wait_for_reason(service, second, "PENDING (Resources)")
        queue = service.query("queue")
        expect(second in str(queue), f"the queue does not show it: {queue}")
        for job in (second, first):
            expect(service.call("cancel", job).returncode == 0, "cancel failed")
            wait_for_state(service, job, "CANCELLED")
        check_clean(service, slurm)
        expect(len(slurm.jobs()) == 2, f"Slurm had {slurm.jobs()}")
        expect(get(service, second).get("attempt", 0) == 0, "a job that waited has an attempt")


def refused(options, _baseline):
    """One clear error: at submit where tesserad knows, later where Slurm says so."""
    with service_with(options, "--slurm-partition", "nowhere") as (service, _, slurm):
        output = service.directory / "output"
        for launcher, fields, text in (
            ("kubernetes", {}, 'resources.launcher is "kubernetes"'),
            ("slurm", {"device_model": "H100"}, 'resources.device_model is "H100"'),
            ("mesos", {}, "resources.launcher"),
        ):
            spec = launched_job(options, output, launcher, **fields)
            done = service.call("submit", str(service.write_job("refused", spec)))
            expect(done.returncode != 0 and text in done.stderr, f"{text}: {done.stderr}")
        job = submit(service, "nowhere", launched_job(options, output, "slurm"))
        failed = wait_for_state(service, job, "FAILED")
        expect("nvalid partition" in failed["reason"], failed["reason"])
        expect(failed["failure"]["kind"] == "USER", f"{failed}")
        expect(not slurm.jobs(), f"Slurm had {slurm.jobs()}")


def fewer_machines(options, _baseline):
    """min_num_processes: Slurm gives the one machine that there is, and the job runs on that. A
    step takes the same rows as on two."""
    with service_with(options) as (service, _, slurm):
        slurm.call("scontrol", "update", "nodename=n2", "state=drain", "reason=away")
        output = service.directory / "output"
        spec = launched_job(options, output, "slurm")
        spec["parallelism"]["min_num_processes"] = 1
        job = submit(service, "fewer", spec)
        events = follow(service, job)
        reasons = reasons_of(events)
        expect(any(reason.startswith("starts 1 of 2 ranks on") for reason in reasons), f"{reasons}")
        expect(set(losses_of(events)) == set(range(1, STEPS + 1)), f"{losses_of(events)}")
        check_clean(service, slurm)
        ((number, state, _, _),) = slurm.jobs()
        expect((state, slurm.details(number)["NumNodes"]) == ("COMPLETED", "1"), f"{slurm.jobs()}")


def gpus(options, _baseline):
    """device: cuda: the nodes and the GPUs of each are asked for and given, by files that stand for
    devices. There is no driver, which the agents say, and no rank is started."""
    with service_with(options, devices=2, gpus=2) as (service, _, slurm):
        output = service.directory / "output"
        for ranks, num_nodes, of_each in ((4, 2, 2), (1, 1, 1)):
            spec = launched_job(
                options, output, "slurm", ranks=ranks, device="cuda", max_restarts=0
            )
            job = submit(service, f"gpus-{ranks}", spec)
            failed = wait_for_state(service, job, "FAILED")
            expect("GPU" in failed["reason"] or "device" in failed["reason"], failed["reason"])
            expect(failed.get("attempt", 0) == 0, f"an attempt was started: {failed}")
            number = slurm.jobs()[-1][0]
            asked = slurm.details(number)
            expect(asked["NumNodes"] == str(num_nodes), f"{asked}")
            expect(asked["TresPerNode"] == f"gres:gpu:{of_each}", f"{asked}")
            expect(asked["JOB_GRES"] == f"gpu:{num_nodes * of_each}", f"{asked}")
        check_clean(service, slurm)


def queue_of_others(options, _baseline):
    """Names of its own kind that no job of this coordinator's wants are ended; others are not."""
    with service_with(options) as (service, _, slurm):
        with sqlite3.connect(service.state_dir / "tessera.db") as database:
            query = "SELECT value FROM settings WHERE name = 'launcher.owner'"
            ((owner,),) = database.execute(query)
        script = slurm.directory / "sleep.sh"
        script.write_text("#!/bin/sh\nexec sleep 1000\n")
        for name in (f"tessera-{owner}-99-1", "tessera-0000-99-1", "mine"):
            slurm.call("sbatch", f"--job-name={name}", "--output=/dev/null", str(script))
        wait_until(
            lambda: [j[2] for j in slurm.live()] == ["tessera-0000-99-1", "mine"],
            f"the unwanted job alone to end: {slurm.jobs()}",
        )


SCENARIOS = {
    "job_of_two_machines": job_of_two_machines,
    "lost_answers": lost_answers,
    "ended_by_slurm": ended_by_slurm,
    "left_by_one_machine": left_by_one_machine,
    "fewer_machines": fewer_machines,
    "gpus": gpus,
    "refused": refused,
    "queue_of_others": queue_of_others,
    "killed_agent": killed_agent,
    "lost_machine": lost_machine,
    "suspended": suspended,
    "cancelled": cancelled,
}
SLICE = ("job_of_two_machines", "lost_answers")


if __name__ == "__main__":
    run_scenarios(__doc__, SCENARIOS, SLICE, require_slurm)
