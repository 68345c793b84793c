#!/usr/bin/env python3
"""What a job needs is known before it runs, and chosen to fit: plan, admission, auto, replan; and
what it says when it runs out of memory all the same.

plan_test.py --bin DIR --assets DIR
"""

import argparse
import json
import pathlib

from cluster import Follower, cluster, expect, run_job, wait_until
from jobs import sft_job, write_llama

# Eight rows a step, by default.
DOCUMENTS, STEPS = 64, 8
SHORT, LONG = 16, 256  # tokens of a document
NEVER = 100_000  # steps: not done while a test runs
# Of predicted peaks: the bound that the rehearsal is held to.
MAX_PEAK_ERROR = 0.005
# Of losses: what another order of float32 sums changes.
MAX_LOSS_ERROR = 1e-5


def write_tokens(path, num_long):
    """Documents of token ids, the long ones last."""
    lengths = [SHORT] * (DOCUMENTS - num_long) + [LONG] * num_long
    with path.open("w") as file:
        for number, length in enumerate(lengths):
            ids = [(7 * number + 3 * position) % 90 + 1 for position in range(length)]
            file.write(json.dumps({"input_ids": ids}) + "\n")


def token_job(service, options, name, memory=None, resources=None):
    """A job of one pass over tokens.jsonl; its batch size is left to the defaults, so to a plan.

    It saves nothing on the way: how long a save holds its copy is a matter of timing.
    """
    job = sft_job(options.assets, service.directory / name)
    job["name"] = name
    job["method"]["sft"]["max_length"] = 2 * LONG
    job["model"]["path"] = str(service.directory / "model")
    job["data"]["train"] = str(service.directory / "tokens.jsonl")
    job["training"] |= {"max_steps": STEPS, "shuffle_dataset": False, "save_strategy": "no"}
    del job["training"]["per_device_train_batch_size"]
    if memory:
        job["memory"] = memory
    job["resources"] = {"cpu_threads": 1} | (resources or {})
    return job


def plan(service, job, *flags):
    [response] = service.query("plan", str(service.write_job("planned", job)), *flags)
    return response["plan"]


def alternative(plan, title):
    return next(entry for entry in plan["alternatives"] if entry["title"] == title)


def peak(rehearsal):
    return int(rehearsal["peakBytes"])


def limit_between(made):
    """Bytes that the job as written does not fit in, and smaller microbatches do."""
    split = alternative(made, "microbatches of 2 rows, 4 a step")
    return (peak(split["rehearsal"]) + peak(made["asWritten"])) // 2


def losses(events):
    return {event["step"]["step"]: event["step"]["loss"] for event in events if "step" in event}


def check_same_losses(expected, found):
    expect(sorted(found) == list(range(1, STEPS + 1)), f"steps {sorted(found)}")
    for step, loss in expected.items():
        error = abs(found[step] - loss) / abs(loss)
        expect(error <= MAX_LOSS_ERROR, f"step {step}: loss {found[step]}, plain {loss}")


def check_plan_here(service, options):
    """`tessera plan` starts nothing; what-ifs are of devices that are not here.

    Returns the plan of the job as it is, and its losses.
    """
    job = token_job(service, options, "plain")
    made = plan(service, job)
    expect(made["numRehearsed"] > 5, f"{made['numRehearsed']} rehearsals")
    expect(made["asWritten"]["cost"]["seconds"] > 0, "no predicted time")
    what_if = plan(service, job, "--world-size", "64", "--device", "h100")
    expect(what_if["asWritten"]["worldSize"] == 64, "not of 64 ranks")
    expect(what_if["rates"].startswith("h100"), what_if["rates"])
    # Of 80 GiB the driver's context takes one.
    expect(int(what_if["deviceMemoryBytes"]) == 79 << 30, what_if["deviceMemoryBytes"])
    refused = service.call("plan", str(service.write_job("planned", job)), "--device-memory", "80")
    expect(refused.returncode == 2, f"80 bytes of memory: {refused.stdout}")
    expect("must be a number with its unit, such as" in refused.stderr, refused.stderr)
    expect(not service.state_dir.exists() and not service.pids(), "plan started something")

    code, events, errors = run_job(service, "run", str(service.write_job("plain", job)))
    expect(code == 0, errors)
    service.expect_gone()
    measured = max(int(event["memory"]["peakBytes"]) for event in events if "memory" in event)
    predicted = peak(made["asWritten"])
    print(f"peak: predicted {predicted}, measured {measured}")
    expect(abs(measured - predicted) <= MAX_PEAK_ERROR * measured, "the prediction is off")
    compared = [event["peak"] for event in events if "peak" in event]
    expect(len(compared) == 1, f"{len(compared)} comparisons of peaks")
    expect(int(compared[0]["predictedBytes"]) == predicted, "compared with another prediction")
    return made, losses(events)


def check_auto(service, options, made, expected):
    """Made to fit, with the same losses."""
    limit = limit_between(made)
    job = token_job(service, options, "auto", {"auto": True}, {"device_memory": str(limit)})
    code, events, errors = run_job(service, "run", str(service.write_job("auto", job)))
    expect(code == 0, errors)
    service.expect_gone()
    [chosen] = [event["plan"] for event in events if "plan" in event]
    print(chosen["reason"])
    expect(chosen["changes"], "nothing was changed")
    held = max(int(event["memory"]["peakBytes"]) for event in events if "memory" in event)
    expect(held <= limit, f"{held} bytes of {limit}")
    expect(abs(held - peak(chosen["rehearsal"])) <= MAX_PEAK_ERROR * held, "the prediction is off")
    check_same_losses(expected, losses(events))


def check_refusal(service, options):
    """Fits nowhere: refused, with what would be needed."""
    for memory in ({}, {"auto": True}):
        job = token_job(service, options, "tiny", memory, {"device_memory": "1MiB"})
        code, _, errors = run_job(service, "run", str(service.write_job("tiny", job)))
        expect(code == 2, f"exit code {code}: {errors}")
        expect("a rank of the job needs" in errors, errors)
        expect("no technique alone makes it fit" in errors, errors)
    service.expect_gone()


def submit_and_grow(service, options, job):
    """Has the job accepted on short documents, which are long ones when it starts. Its name."""
    write_tokens(service.directory / "tokens.jsonl", num_long=0)
    blocker = token_job(service, options, "blocker")
    blocker["training"]["max_steps"] = NEVER
    first = service.call("submit", str(service.write_job("blocker", blocker))).stdout.strip()
    submitted = service.call("submit", str(service.write_job(job["name"], job)))
    expect(submitted.returncode == 0, submitted.stderr)
    write_tokens(service.directory / "tokens.jsonl", num_long=DOCUMENTS // 2)
    service.call("cancel", first)
    return submitted.stdout.strip()


def check_out_of_memory(service, options, made):
    """What a rank held when it ran out of memory is shown by every command that shows the job."""
    limit = limit_between(made)
    job = token_job(service, options, "full", resources={"device_memory": str(limit)})
    name = submit_and_grow(service, options, job)
    watched = service.call("watch", name)
    expect(watched.returncode == 1, f"exit code {watched.returncode}: {watched.stderr}")
    shown = service.call("get", name)
    for text in (watched.stdout + watched.stderr, shown.stdout):
        for part in ("device memory of rank 0", "  refused: ", "parameters", "tessera plan"):
            expect(part in text, f"no {part!r} in {text}")
    [found] = service.query("get", name)
    expect(found["failure"]["kind"] == "MEMORY", found["failure"])
    refusal = found["failure"]["outOfMemory"]
    held, asked = int(refusal["memory"]["currentBytes"]), int(refusal["requested"]["bytes"])
    expect(held <= limit < held + asked, f"{asked} bytes refused at {held} of {limit}")
    print(found["failure"]["message"])


def check_replan(service, options, made, expected):
    """A job that runs out of memory in its middle goes on from its checkpoint with another plan."""
    resources = {"device_memory": str(limit_between(made))}
    job = token_job(service, options, "grows", {"on_oom": "replan"}, resources)
    job["training"] |= {"save_strategy": "steps", "save_steps": 2, "async_save": False}
    name = submit_and_grow(service, options, job)
    follower = Follower(service, "watch", name)
    follower.follow(lambda event: None)
    code, errors = follower.end()
    expect(code == 0, errors)
    events = follower.events
    [chosen] = [event["plan"] for event in events if "plan" in event]
    print(chosen["reason"])
    reasons = [event["state"]["reason"] for event in events if "state" in event]
    expect("goes on from the checkpoint of step 4" in reasons, str(reasons))
    check_same_losses(expected, losses(events))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with cluster(options.bin) as service:
        write_llama(service.directory / "model", 128, 352, 2)
        write_tokens(service.directory / "tokens.jsonl", num_long=DOCUMENTS // 2)
        made, expected = check_plan_here(service, options)
        check_auto(service, options, made, expected)
        check_refusal(service, options)
        with service.up("--cpu-slots", "1"):
            check_out_of_memory(service, options, made)
            check_replan(service, options, made, expected)
            wait_until(lambda: not service.unfinished(), "all jobs to end")


if __name__ == "__main__":
    main()
