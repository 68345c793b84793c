#!/usr/bin/env python3
"""A service that runs for itself: submit, watch, list, cancel, metrics, restarts, and its end.

service_test.py --bin DIR --assets DIR
"""

import argparse
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import urllib.request

from cluster import DEADLINE_SECONDS, Follower, cluster, expect, program, run_job, wait_until
from jobs import sft_job, sha256
from submitted import submit, wait_for_state

LONG = 100_000  # steps: never done while a test runs
METRICS = [
    "tessera_job_step",
    "tessera_job_loss",
    "tessera_job_memory_bytes",
    "tessera_rpc_requests_total",
]


def scrape(service):
    port = (service.state_dir / "http.port").read_text().strip()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        return response.read().decode()


def check_metrics(service, job):
    page = scrape(service)
    for name in METRICS:
        expect(re.search(rf"^{name}{{.*}} ", page, re.M), f"/metrics has no {name}:\n{page}")
    for owner in ("parameters", "gradients", "optimizer"):
        expect(
            re.search(rf'^tessera_job_memory_bytes{{.*"{job}".*"{owner}".*}} \d', page, re.M),
            f"/metrics does not say the memory of {owner}:\n{page}",
        )
    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=page, capture_output=True, text=True
    )
    expect(done.returncode == 0 and not done.stderr, f"promtool: {done.stdout}{done.stderr}")


def test_watch_and_cancel(options, service):
    """A job followed from a second terminal, read while it runs, and cancelled."""
    job = submit(
        service, "long", sft_job(options.assets, service.directory / "long", 2, max_steps=LONG)
    )
    watcher = Follower(service, "watch", job)
    cancelled = False

    def on_event(event):
        nonlocal cancelled
        if cancelled or event.get("step", {}).get("step", 0) < 5:
            return
        cancelled = True
        check_metrics(service, job)
        (shown,) = service.query("get", "long")
        expect(shown["id"] == job and shown["state"] == "RUNNING", f"get says {shown}")
        expect(shown["step"]["step"] >= 5 and shown["spec"]["training"]["maxSteps"] == LONG, shown)
        expect([j["id"] for j in service.query("list", "--state", "running")] == [job], "list")
        (node,) = service.query("nodes")
        holders = [device.get("job") for device in node["devices"]]
        expect(node["state"] == "READY" and holders.count(job) == 2, f"nodes says {node}")
        (cancelling,) = service.query("cancel", job)
        expect(cancelling["state"] == "CANCELLING", f"cancel says {cancelling}")

    watcher.follow(on_event)
    code, errors = watcher.end()
    last = watcher.events[-1]["state"]
    expect(code == 3 and last["state"] == "CANCELLED", f"exit code {code}, {last}: {errors}")
    service.expect_gone("tessera-trainer")
    expect(not (service.directory / "long" / "final").exists(), "a cancelled job has a result")
    # A watch that comes late is told the same.
    code, events, _ = run_job(service, "watch", job)
    expect(code == 3 and events == watcher.events, "a later watch differs")
    expect(service.call("watch", "nobody").returncode == 2, "a job that is not there was watched")


def test_queue(options, service):
    """A job waits for devices that another holds, and starts when they are free."""
    first = submit(
        service, "first", sft_job(options.assets, service.directory / "first", 2, max_steps=LONG)
    )
    wait_for_state(service, first, "RUNNING")
    second = submit(service, "second", sft_job(options.assets, service.directory / "second", 1))
    queued = wait_for_state(service, second, "QUEUED")
    wait_until(
        lambda: "0 free of 2" in service.query("get", second)[0]["reason"],
        f"a reason for waiting; now {queued['reason']!r}",
    )
    service.call("cancel", first)
    code, _, errors = run_job(service, "watch", second)
    expect(code == 0, errors)


def test_taken_port(service):
    """A coordinator that cannot listen says so, and ends in order though its work had begun."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for _ in range(5):
            done = subprocess.run(
                [
                    str(service.binaries / "tesserad"),
                    *("--state-dir", str(service.directory / "taken"), "--listen", address),
                ],
                capture_output=True,
                text=True,
                timeout=DEADLINE_SECONDS,
            )
            expect(done.returncode == 1, f"exit code {done.returncode}: {done.stderr}")
            expect(f"cannot listen on {address}" in done.stderr, done.stderr)


def test_end_of_service(options, service, flags):
    """SIGTERM, and kill -9, of `tessera up` take everything along; the next one goes on."""
    output = service.directory / "output"
    spec = sft_job(options.assets, output, 2, max_steps=200, save_steps=20)
    with service.up(*flags):
        code, _, errors = run_job(service, "run", str(service.write_job("whole", spec)))
        expect(code == 0, errors)
        whole = sha256(output / "final" / "model.safetensors")
        shutil.rmtree(output)
        job = submit(service, "job", spec)
        wait_until((output / "checkpoint-20").exists, "a checkpoint")
    # up() has seen all processes go.
    supervisor = subprocess.Popen(
        service.command("up", *flags), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until((output / "checkpoint-60").exists, "a checkpoint after SIGTERM")
    supervisor.send_signal(signal.SIGKILL)
    supervisor.wait()
    service.expect_gone()
    with service.up(*flags):
        code, events, errors = run_job(service, "watch", job)
        expect(code == 0, errors)
        expect(sha256(output / "final" / "model.safetensors") == whole, "the final weights differ")
        steps = {event["step"]["step"] for event in events if "step" in event}
        expect(steps == set(range(1, 201)), f"{len(steps)} of 200 steps were seen")
        service.expect_nothing_unfinished()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    flags = ("--cpu-slots", "2")
    with cluster(options.bin) as service:
        with service.up(*flags):
            test_watch_and_cancel(options, service)
            print("ok: watch and cancel", flush=True)
            test_queue(options, service)
            print("ok: queue", flush=True)
        test_end_of_service(options, service, flags)
        print("ok: end of the service", flush=True)
        test_taken_port(service)
        print("ok: a port that is taken", flush=True)


if __name__ == "__main__":
    main()
