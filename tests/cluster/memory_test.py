#!/usr/bin/env python3
"""What the ledger says of one rank, of two, and of the process.

memory_test.py --bin DIR --assets DIR
"""

import argparse
import pathlib

from cluster import cluster, expect, run_job
from jobs import sft_job, write_llama

MIB = 1 << 20
# (hidden, ffn, layers): 14 MiB and 33 MiB of parameters.
SMALL, LARGE = (256, 704, 3), (384, 1024, 5)
STEPS = 8
# In a unit's flat vector each parameter begins at a multiple of this many bytes, and each rank's
# part ends at one.
PADDING_BYTES = 1024
# Peak RSS beyond the ledger's peak: the process's code and libraries, which a model of any size
# needs (measured: 135 to 140 MiB), and what grows with the model and is no tensor: pages of the
# mapped weights, malloc's holes, Gloo's buffers (measured: 6 to 18 MiB more for the larger model).
PROCESS_MIB, GROWTH_MIB = 256, 24


def peaks(owners):
    return {entry["owner"]: int(entry["peakBytes"]) for entry in owners}


def train(options, size, ranks):
    """(last memory event of each rank, number of parameters) of a short run."""
    with cluster(options.bin) as service:
        model = service.directory / "model"
        count = write_llama(model, *size)
        job = sft_job(options.assets, service.directory / "output", ranks, max_steps=STEPS)
        job["model"]["path"] = str(model)
        job["training"]["save_strategy"] = "no"
        job["resources"] = {"cpu_threads": 1}
        code, events, errors = run_job(service, "run", str(service.write_job("job", job)))
        expect(code == 0, errors)
        service.expect_gone()
        last = {event["memory"]["rank"]: event["memory"] for event in events if "memory" in event}
        expect(sorted(last) == list(range(ranks)), f"memory events of ranks {sorted(last)} only")
        return list(last.values()), count


def check_sums(memory):
    """An event's owners make up its totals."""
    for total, part in (("currentBytes", "currentBytes"), ("peakBytes", "atPeakBytes")):
        added = sum(int(entry[part]) for entry in memory["owners"])
        expect(added == int(memory[total]), f"{total} is {memory[total]}, its owners' {added}")


def most_padding(layers, ranks):
    """Of all units: a block's 9 parameters; the embedding, the final norm and the output matrix."""
    return PADDING_BYTES * (9 * layers + 3 + ranks * (layers + 2))


def check_halves(one, two, layers):
    """Two ranks hold half each of what one holds."""
    padding = most_padding(layers, ranks=2)
    # The optimizer has two moments of each parameter.
    for owner, copies in (("parameters", 1), ("gradients", 1), ("optimizer", 2)):
        whole = peaks(one["owners"])[owner]
        for memory in two:
            half = peaks(memory["owners"])[owner]
            print(f"{owner}: {whole} bytes on one rank, {half} on rank {memory['rank']} of two")
            expect(
                abs(half - whole / 2) <= copies * padding,
                f"{owner}: {half} bytes on rank {memory['rank']}, not half of {whole}",
            )


def beyond_ledger(memory):
    return (int(memory["peakRssBytes"]) - int(memory["peakBytes"])) / MIB


def check_process(ranks, small, large):
    """The process's memory is the ledger's and a constant."""
    for a, b in zip(map(beyond_ledger, small), map(beyond_ledger, large), strict=True):
        print(f"world {ranks}: peak RSS beyond the ledger: {a:.1f} MiB, larger model {b:.1f} MiB")
        expect(max(a, b) <= PROCESS_MIB, f"more than {PROCESS_MIB} MiB beyond the ledger")
        expect(
            abs(b - a) <= GROWTH_MIB,
            f"the larger model takes {b - a:.1f} MiB that the ledger does not know, more than "
            f"{GROWTH_MIB} MiB",
        )


def check_limit(options, peak):
    """On devices of three quarters of the peak the job is refused, with what would make it fit."""
    with cluster(options.bin) as service:
        model = service.directory / "model"
        write_llama(model, *SMALL)
        job = sft_job(options.assets, service.directory / "output", 2, max_steps=STEPS)
        job["model"]["path"] = str(model)
        job["resources"] = {"cpu_threads": 1, "device_memory": f"{peak * 3 // 4}B"}
        done = service.call("run", str(service.write_job("job", job)))
        expect(done.returncode == 2, f"it ends with {done.returncode}: {done.stderr}")
        for text in ("a rank of the job needs ", "what would make it fit:", "optimizer states"):
            expect(text in done.stderr, f"no {text!r} in what it prints: {done.stderr}")
        service.expect_gone()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    large = {}
    for ranks in (1, 2):
        small, _ = train(options, SMALL, ranks)
        large[ranks], count = train(options, LARGE, ranks)
        for memory in [*small, *large[ranks]]:
            check_sums(memory)
        check_process(ranks, small, large[ranks])
    held, layers = peaks(large[1][0]["owners"])["parameters"], LARGE[2]
    expect(
        4 * count <= held <= 4 * count + most_padding(layers, ranks=1),
        f"one rank holds {held} bytes of {count} parameters",
    )
    check_halves(large[1][0], large[2], layers)
    check_limit(options, min(int(memory["peakBytes"]) for memory in small))


if __name__ == "__main__":
    main()
