#!/usr/bin/env python3
"""The Python clients, the doctor and reflection against a service and jobs that are real.

clients_test.py --bin DIR --assets DIR
"""

import argparse
import asyncio
import importlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
import reflection
from cluster import DEADLINE_SECONDS, cluster, expect, wait_until
from jobs import sft_job

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from reward_server import build_package

LONG = 100_000  # steps: never done while a test runs
COORDINATOR = "tessera.v1.Coordinator"
SWEEP = pathlib.Path(__file__).resolve().parents[2] / "examples/sweep/sweep.py"


def kill_coordinator(service):
    """`tessera up` starts it again."""
    (pid,) = service.pids("tesserad")
    os.kill(pid, signal.SIGKILL)
    return pid


def whole_job(options, service, name, **training):
    return sft_job(options.assets, service.directory / name, **training) | {"name": name}


def expect_whole(events, name):
    """Nothing lost, repeated or reordered, to the end."""
    revisions = [event.revision for event in events]
    expect(revisions == sorted(set(revisions)), f"{name}: revisions {revisions}")
    steps = [event.step.step for event in events if event.HasField("step")]
    expect(steps == [*range(1, 41)], f"{name} saw steps {steps}")
    expect(events[-1].state.state == tessera.State.SUCCEEDED, f"{name}: {events[-1]}")


def test_watch(options, service):
    """Watchers, one that waits and two of asyncio, go on over two deaths of the coordinator."""

    async def follow(job):
        async with tessera.AsyncClient(service.address) as client:
            return [event async for event in client.watch(job)]

    async def follow_twice(job):
        return await asyncio.gather(follow(job), follow(job))

    with tessera.Client(service.address) as client:
        job = client.submit(whole_job(options, service, "watched", max_steps=40, save_steps=5))
        others = ThreadPoolExecutor(1)
        both = others.submit(lambda: asyncio.run(follow_twice(job.id)))
        seen, killed = [], []
        for event in client.watch("watched"):
            seen.append(event)
            if event.step.step in (5, 20):
                killed.append(kill_coordinator(service))
        expect(len(set(killed)) == 2, f"the coordinator was killed {len(killed)} times")
        expect_whole(seen, "the watcher")
        for events in both.result(120):
            expect_whole(events, "a watcher of asyncio")
        others.shutdown()
        again = list(client.watch(job.id, follow=False))
        expect(again == seen, "what is stored differs from what was seen")
        middle = seen[len(seen) // 2].revision
        part = list(client.watch(job.id, start_revision=middle, follow=False))
        expect(part == [e for e in seen if e.revision >= middle], "a watch from the middle differs")
        ended = client.wait(job.id)
        expect(ended.state == tessera.State.SUCCEEDED and ended.step.step == 40, f"{ended}")


def test_calls(options, service):
    """submit in all its forms, list, get, cancel, nodes, plan, and what is refused."""
    with tessera.Client(service.address) as client:
        job = whole_job(options, service, "long", max_steps=LONG)
        file = service.directory / "long.json"
        file.write_text(json.dumps(job))
        first = client.submit(str(file), request_id="once")
        expect(client.submit(job, request_id="once").id == first.id, "it was submitted twice")
        for kind, call in (
            (tessera.AlreadyExistsError, lambda: client.submit(other_job(job), request_id="once")),
            (tessera.NotFoundError, lambda: client.get("nobody")),
            (tessera.NotFoundError, lambda: next(client.watch("nobody"))),
            (tessera.InvalidJobError, lambda: client.submit(wrong_job(job))),
        ):
            error = raised(call)
            expect(type(error) is kind, f"{error!r}, not {kind.__name__}")
        fields = [violation.field for violation in error.violations]
        expect(fields == ["training.learning_rate"], f"{fields}: {error}")
        expect(client.submit(job, validate_only=True).id == "", "a check stored a job")
        expect([j.id for j in client.list(["queued", "starting", "running"])] == [first.id], "list")
        (node,) = client.nodes()
        expect(node.state == tessera.Node.READY, f"{node}")
        plan = client.plan(job, world_size=2).plan
        expect(plan.ByteSize() > 0, "there is no plan")
        client.cancel("long")
        expect(client.wait(first.id).state == tessera.State.CANCELLED, "it was not cancelled")
        pages = client.list(limit=1)
        expect([j.id for j in pages] == [first.id], f"{pages}")


def other_job(job):
    return job | {"name": "other"}


def wrong_job(job):
    return job | {"training": job["training"] | {"learning_rate": -1}}


def raised(call):
    try:
        call()
    except tessera.TesseraError as error:
        return error
    return None


def test_generate(options, service):
    """Both clients make of a finished job what the command line makes."""
    # The coordinator was killed in the test before.
    wait_until(
        lambda: any(node["state"] == "READY" for node in service.query("nodes")), "the agent"
    )
    flags = ["--max-new-tokens", "8", "--temperature", "0"]
    sampling = {"max_new_tokens": 8, "temperature": 0.0}
    with tessera.Client(service.address) as client:
        job = next(j.id for j in client.list() if j.spec.name == "watched")
        replies = service.query("generate", "--job", job, "-p", "The quick", *flags)
        want = "".join(reply.get("text", {}).get("text", "") for reply in replies)
        made = client.complete(["The quick"], job=job, **sampling)
        final = service.directory / "watched/final"
        of_model = client.complete(["The quick"], model=final, **sampling)

    async def complete():
        async with tessera.AsyncClient(service.address) as client:
            return await client.complete(["The quick"], job=job, **sampling)

    expect(made == asyncio.run(complete()) == of_model, f"{made} and {of_model}")
    expect(made == [want] and want, f"{made}, not {want!r}")


def test_sweep(options, service):
    """The example: one of two trials is cancelled, or too late for that, and the better goes on."""
    job = whole_job(options, service, "sweep", save_steps=5, lr_scheduler_type="constant")
    file = service.directory / "sweep.json"
    file.write_text(json.dumps(job))
    flags = "--rates 1e-6 1e-2 --judge-at 10 --steps 20 --further 25"
    done = subprocess.run(
        [sys.executable, "-B", SWEEP, file, "--address", service.address, *flags.split()],
        env=os.environ | {"PYTHONPATH": sys.path[0]},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    expect(done.returncode == 0, f"{done.stdout}{done.stderr}")
    for line in ("lr 1e-06 .*cancelled", "lr 0.01 .*goes on", "best: lr 0.01$", "checkpoint-20$"):
        expect(re.search(line, done.stdout, re.M), f"no {line!r} in {done.stdout}")
    expect("SUCCEEDED: steps 21 to 25" in done.stdout, done.stdout)


def test_reflection(_, service):
    """A program that knows nothing but the address makes calls."""
    with grpc.insecure_channel(service.address) as channel:
        known = reflection.Reflection(channel)
        expect(COORDINATOR in known.services(), f"services: {known.services()}")
        methods = set(known.service(COORDINATOR).methods_by_name)
        expect({"SubmitJob", "WatchJob", "Generate"} <= methods, f"methods: {methods}")
        (jobs,) = known.call(COORDINATOR, "ListJobs", {"states": ["SUCCEEDED"]})
        job = jobs["jobs"][-1]
        expect(job["spec"]["name"] == "watched", f"{job}")
        watch = {"id": job["id"], "noFollow": True}
        events = known.call(COORDINATOR, "WatchJob", watch)
        expect(events[-1]["event"]["state"]["state"] == "SUCCEEDED", f"{events[-1]}")


def test_doctor(_, service):
    done = service.call("--json", "doctor")
    findings = {f["name"]: f for f in map(json.loads, done.stdout.splitlines())}
    expect(findings["service"]["level"] == "ok", f"{findings['service']}")
    expect(findings["nodes"]["detail"] == "1 ready", f"{findings['nodes']}")
    bad = [f for f in findings.values() if f["level"] == "problem"]
    expect(done.returncode == (1 if bad else 0) and not bad, f"{bad}")
    ids = service.call("completion", "jobs").stdout.split()
    expect(ids == [job["id"] for job in service.query("list")], f"ids: {ids}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with cluster(options.bin) as service:
        global tessera
        sys.path.insert(0, str(build_package(service.directory)))
        tessera = importlib.import_module("tessera")
        with service.up("--cpu-slots", "2"):
            wait_until(lambda: service.query("nodes"), "a node")
            for test in (
                test_watch,
                test_generate,
                test_reflection,
                test_calls,
                test_sweep,
                test_doctor,
            ):
                test(options, service)
                print(f"ok: {test.__name__.removeprefix('test_')}", flush=True)


if __name__ == "__main__":
    main()
