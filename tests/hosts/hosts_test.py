#!/usr/bin/env python3
"""A job on several machines, and what their network does to it: it ends as if nothing had happened.

hosts_test.py --bin DIR --assets DIR [--all | SCENARIO ...]

Machines are namespaces (fabric.py), what happens to them is in scenarios.py. The job must end
SUCCEEDED with the very weights of a run on one machine; never may ranks of two attempts be alive at
a time; the client must have seen every step, none twice in an attempt, with the same losses
wherever a step was repeated. For root. Where there can be no namespaces it says why, and ends
with 77.
"""

import argparse
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))

from cluster import ProductError, cluster, expect
from fabric import Fabric, why_not
from machines import Run, Site
from scenarios import FAST, TABLE

QUICK = ["flicker-and-vanish"]
SKIPPED = 77


def run_scenario(options, scenario, baseline):
    """One line on what happened."""
    began = time.monotonic()
    with cluster(options.bin) as service, Fabric() as fabric:
        links = (scenario.rate, scenario.delay_ms)
        site = Site(service, fabric, scenario.num_nodes, scenario.flags, *links)
        flags = ("--address", service.address)
        job = Run(options, service, scenario.size, flags, **scenario.resources)
        wanted = scenario.act(site, job)
        fabric.slow(FAST)
        attempts = job.end(baseline)[2]
        expect(wanted in (None, attempts), f"{attempts} attempts, not {wanted}")
    return f"{attempts} attempts, {time.monotonic() - began:.1f} s"


def run_here(options, size):
    """The same job on this machine, undisturbed: (losses, hash of the weights)."""
    with cluster(options.bin) as service:
        return Run(options, service, size).end()[:2]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--all", action="store_true", help="every scenario; else a few")
    parser.add_argument("names", nargs="*", metavar="SCENARIO", help=", ".join(TABLE))
    options = parser.parse_args()
    options.assets = options.assets.resolve()
    if reason := why_not():
        print(f"SKIPPED: {reason}")
        sys.exit(SKIPPED)
    names = options.names or (list(TABLE) if options.all else QUICK)
    baselines, failed = {}, []
    for name in names:
        size = TABLE[name].size
        try:
            if size not in baselines:
                baselines[size] = run_here(options, size)
            story = run_scenario(options, TABLE[name], baselines[size])
            print(f"ok: {name}: {story}", flush=True)
        except ProductError as failure:
            failed.append(name)
            print(f"FAILED: {name}: {failure}", flush=True)
    print(f"{len(names) - len(failed)} of {len(names)} scenarios passed", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
