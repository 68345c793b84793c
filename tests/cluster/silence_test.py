#!/usr/bin/env python3
"""Who watches a job, or asks, over a network that falls silent gives up, and says why.

silence_test.py --bin DIR --assets DIR [--all]

The job waits in the queue, so its watch is quiet in any case: pings alone tell the two apart. The
clients wait beside each other for what they are patient: Python's, sync and asyncio, and with --all
the command line, which is so for a minute.
"""

import argparse
import asyncio
import importlib
import pathlib
import subprocess
import sys
import threading

import grpc
from cluster import DEADLINE_SECONDS, cluster, expect, wait_until
from jobs import sft_job
from submitted import submit

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from reward_server import build_package
from silent_proxy import SilentProxy

PATIENCE = 0.5


def call(tessera, address, job, seen):
    """One call after the other, which are given up before their own deadlines."""
    with tessera.Client(address, patience=0) as client:
        while True:
            client.get(job)
            seen.set()


def watch(tessera, address, job, seen):
    with tessera.Client(address, patience=PATIENCE) as client:
        for _ in client.watch(job):
            seen.set()


def watch_async(tessera, address, job, seen):
    async def follow():
        async with tessera.AsyncClient(address, patience=PATIENCE) as client:
            async for _ in client.watch(job):
                seen.set()

    asyncio.run(follow())


class Watcher:
    """Of a job, by `program`, until that raises; a thread of its own."""

    def __init__(self, program, *arguments):
        self.seen = threading.Event()
        self.failure = None

        def run():
            try:
                program(*arguments, self.seen)
            except Exception as failure:
                self.failure = failure

        self.thread = threading.Thread(target=run)
        self.thread.start()


def follow_by_cli(service, address, job):
    words = ("--address", address, "--json", "watch", job)
    return subprocess.Popen(
        [str(service.binaries / "tessera"), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check(options, service):
    sys.path.insert(0, str(build_package(service.directory)))
    tessera = importlib.import_module("tessera")
    job = submit(service, "waits", sft_job(options.assets, service.directory / "out"))
    # Of several addresses, as of one on this machine no silence is expected.
    proxies = [SilentProxy(service.state_dir / "tesserad.sock") for _ in range(2)]
    address = ",".join(proxy.address for proxy in proxies)
    watchers = [Watcher(each, tessera, address, job) for each in (call, watch, watch_async)]
    by_cli = [follow_by_cli(service, address, job)] if options.all else []
    for watcher in watchers:
        expect(watcher.seen.wait(DEADLINE_SECONDS), f"no event came: {watcher.failure}")
    for process in by_cli:
        expect(process.stdout.readline(), "no event came")
    for proxy in proxies:
        proxy.be_silent()
    for watcher in watchers:
        watcher.thread.join(DEADLINE_SECONDS)
        expect(not watcher.thread.is_alive(), "a watch does not end")
        expect(isinstance(watcher.failure, tessera.UnreachableError), f"{watcher.failure!r}")
        expect(watcher.failure.code == grpc.StatusCode.UNAVAILABLE, f"{watcher.failure.code}")
    for process in by_cli:
        _, errors = process.communicate(timeout=DEADLINE_SECONDS)
        expect(process.returncode == 4, f"exit code {process.returncode}: {errors}")
    for proxy in proxies:
        proxy.close()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    with cluster(options.bin) as service:
        # There is no agent: the job is not checked, and is never placed.
        command = [str(service.binaries / "tesserad"), "--state-dir", str(service.state_dir)]
        with (service.directory / "tesserad.log").open("ab") as log:
            process = subprocess.Popen([*command, "--http", ""], stderr=log)
        wait_until(lambda: service.call("nodes").returncode == 0, "tesserad to answer")
        check(options, service)
        process.terminate()
        expect(process.wait(DEADLINE_SECONDS) == 0, "tesserad did not end well")
    print("ok: all give up")


if __name__ == "__main__":
    main()
