#!/usr/bin/env python3
"""A large Parquet file trains in flat memory, and a killed run goes on with the very next batch.

data_test.py --bin DIR --assets DIR [--documents N]

Writes N short documents, trains one pass over them with a tiny model, and looks at the memory that
the rank reports. Then trains again, on the tokens that the first run left in the cache, kills the
rank in the middle, and compares every step with the first run's: the loss of a step is that of its
batch and of all before, so equal losses mean equal batches.
"""

import argparse
import os
import pathlib
import random
import signal
import statistics
import time

import pyarrow as pa
import pyarrow.parquet as pq
from cluster import Follower, cluster, expect
from jobs import sft_job, write_llama

MIB = 1 << 20
SLICE_DOCUMENTS = 20_000
ROWS_A_GROUP = 50_000
WRITTEN_AT_ONCE = 50_000
BATCH_ROWS, MAX_LENGTH = 32, 256
SAVE_STEPS = 10
STEPS_AFTER_KILL = 3 * SAVE_STEPS
# The rank's code, libraries and tiny model, and the few bytes of each document; not the documents.
MAX_PEAK_RSS = 512 * MIB
# What huge pages, the mapped cache and checkpoints move up and down after the warm-up.
MAX_RSS_SPREAD = 64 * MIB
# By how much the second half's mean may be above the first's; with enough samples to tell.
MAX_RSS_DRIFT = 8 * MIB
MIN_DRIFT_SAMPLES = 50
WARM_UP = 0.2  # of the steps
SECONDS = 3600


def write_documents(path, count):
    """Returns the bytes of text."""
    words = random.Random(5)
    vocabulary = [
        "".join(words.choices("abcdefghijklmnop", k=words.randint(2, 9))) for _ in range(500)
    ]
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    num_bytes = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for begin in range(0, count, WRITTEN_AT_ONCE):
            ids = range(begin, min(count, begin + WRITTEN_AT_ONCE))
            texts = [" ".join(words.choices(vocabulary, k=words.randint(2, 8))) for _ in ids]
            num_bytes += sum(map(len, texts))
            batch = pa.table({"id": list(ids), "text": texts}, schema=schema)
            writer.write_table(batch, row_group_size=ROWS_A_GROUP)
    return num_bytes


def sft(service, options, name, **training):
    job = sft_job(options.assets, service.directory / name, **training)
    job["method"]["sft"] = {"max_length": MAX_LENGTH, "packing": True}
    job["model"]["path"] = str(service.directory / "model")
    job["data"]["train"] = [str(service.directory / "data")]
    job["training"] |= {
        "per_device_train_batch_size": BATCH_ROWS,
        "lr_scheduler_type": "constant",
        "save_steps": SAVE_STEPS,
        "save_total_limit": 2,
    }
    job["resources"] = {"cpu_threads": options.threads}
    return service.write_job(name, job)


def run(service, job_file, on_event=lambda event: None):
    """(events, seconds until the first step); the job must succeed."""
    begin, first = time.monotonic(), []

    def look(event):
        if "step" in event and not first:
            first.append(time.monotonic() - begin)
        on_event(event)

    follower = Follower(service, "run", str(job_file))
    follower.follow(look, seconds=SECONDS)
    code, errors = follower.end()
    expect(code == 0, errors)
    return follower.events, first[0]


def steps_of(events):
    """step -> what the rank told of it; a step told twice must be the same both times."""
    steps = {}
    for event in events:
        if "step" not in event:
            continue
        step = event["step"]
        told = {field: step[field] for field in ("loss", "numTokens", "epoch", "gradNorm")}
        number = int(step["step"])
        expect(
            steps.setdefault(number, told) == told, f"step {number}: {steps[number]}, then {told}"
        )
    return steps


def check_memory(events, num_steps):
    memory = [event["memory"] for event in events if "memory" in event]
    warm = [int(m["rssBytes"]) for m in memory if int(m["step"]) >= WARM_UP * num_steps]
    peak = max(int(m["peakRssBytes"]) for m in memory)
    expect(len(warm) >= 2, f"only {len(warm)} memory events after the warm-up")
    low, high = min(warm), max(warm)
    print(
        f"RSS after warm-up: {low / MIB:.1f} to {high / MIB:.1f} MiB in {len(warm)} samples, "
        f"first {warm[0] / MIB:.1f}, last {warm[-1] / MIB:.1f}; peak {peak / MIB:.1f} MiB",
        flush=True,
    )
    expect(high - low <= MAX_RSS_SPREAD, "RSS goes up and down too far")
    if len(warm) >= MIN_DRIFT_SAMPLES:
        half = len(warm) // 2
        drift = statistics.fmean(warm[half:]) - statistics.fmean(warm[:half])
        print(f"the second half's mean is {drift / MIB:+.1f} MiB from the first's", flush=True)
        expect(drift <= MAX_RSS_DRIFT, "RSS grows")
    expect(peak <= MAX_PEAK_RSS, f"more than {MAX_PEAK_RSS // MIB} MiB")


def notes_of(events):
    lines = [event["log"]["text"] for event in events if "log" in event]
    return [line for line in lines if line.startswith("tokenised ")]


def check_resumed(service, options, whole):
    """Kills the rank in the middle of a second run."""
    middle = len(whole) // 2
    killed_at = []

    def kill(event):
        if "step" in event and int(event["step"]["step"]) == middle and not killed_at:
            os.kill(service.rank_pid(0), signal.SIGKILL)
            killed_at.append(middle)

    job_file = sft(service, options, "killed", max_steps=middle + STEPS_AFTER_KILL)
    events, seconds = run(service, job_file, kill)
    expect(killed_at, f"step {middle} was not seen")
    print(f"first step {seconds:.1f} s after the second run's start, documents cached", flush=True)
    expect(not notes_of(events), f"documents were tokenised again: {notes_of(events)}")
    states = [event["state"]["state"] for event in events if "state" in event]
    expect("RESTARTING" in states, f"the run was not restarted: {states}")
    steps = steps_of(events)
    expect(sorted(steps) == list(range(1, middle + STEPS_AFTER_KILL + 1)), "steps are missing")
    for number, told in steps.items():
        expect(told == whole[number], f"step {number}: {told}, uninterrupted {whole[number]}")
    print(f"killed at step {middle}: {len(steps)} steps equal the uninterrupted run's", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--documents", type=int, default=SLICE_DOCUMENTS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    with cluster(options.bin) as service:
        (service.directory / "data").mkdir()
        num_bytes = write_documents(service.directory / "data/documents.parquet", options.documents)
        print(f"{options.documents} documents, {num_bytes / 1e6:.1f} MB of text", flush=True)
        write_llama(service.directory / "model", 64, 64, 1)
        job_file = sft(service, options, "whole", max_steps=-1, num_train_epochs=1)
        events, seconds = run(service, job_file)
        steps = steps_of(events)
        print(f"{len(steps)} steps, the first {seconds:.1f} s after the start", flush=True)
        # Not at all where the rehearsal at submit came to the end of them.
        expect(len(notes_of(events)) <= 1, f"tokenised {notes_of(events)}")
        print(*notes_of(events), flush=True)
        cache = sum(
            path.stat().st_size for path in (service.directory / "cache").rglob("*/tokens/*/*")
        )
        print(f"cache {cache / MIB:.1f} MiB", flush=True)
        expect(cache > 0, "no tokens were cached")
        check_memory(events, len(steps))
        check_resumed(service, options, steps)
        service.expect_gone()


if __name__ == "__main__":
    main()
