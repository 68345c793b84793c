#!/usr/bin/env python3
"""Each bad input gives one clear error, the right status, and leaves nothing behind.

bad_input_test.py --bin DIR --assets DIR --probe PROGRAM [CASE ...]
"""

import argparse
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys

from bad_inputs import CASES, FILE, RUN, SUBMIT
from cluster import ProductError, cluster, expect, run_job
from disks import MountError, mounted
from jobs import sft_job

INVALID_ARGUMENT = 3
EXIT_CODES = {FILE: 2, SUBMIT: 2, RUN: 1}
# Those that are also given to a `tessera run` that brings its own service.
ALONE = ("malformed line 17", "malformed line far down", "unknown field")


def prepare(case, assets, directory):
    """(job, path of its file) of a broken job below `directory`."""
    shutil.copytree(assets / "models" / "qwen3", directory / "model")
    shutil.copytree(assets / "tokenizer", directory / "tokenizer")
    shutil.copy(assets / "data" / "short.jsonl", directory / "data.jsonl")
    job = sft_job(assets, directory / "output", ranks=2)
    job["model"] = {"path": str(directory / "model"), "tokenizer": str(directory / "tokenizer")}
    job["data"]["train"] = str(directory / "data.jsonl")
    text = case.break_job(job, directory)
    path = directory / "job.yaml"
    path.write_text(json.dumps(job, indent=1) + "\n" if text is None else text)
    return job, path


def check_error(case, code, events, errors):
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    expect(code == EXIT_CODES[case.stage], f"exit code {code}, {lines}")
    expect(len(lines) == 1, f"not one error but {lines}")
    expect(case.matches(lines[0]), f"the error is {lines[0]!r}, expected {case.pattern!r}")
    if case.stage != RUN:
        expect(not events, f"events of a job that was refused: {events}")
        return
    last = events[-1]["state"]
    expect(last["state"] == "FAILED", f"the job ended {last}")
    failure = last["failure"]
    expect(
        failure["kind"] == case.kind and failure["field"] == case.field,
        f"kind and field of {failure}",
    )
    expect(events[-1]["attempt"] == 1, f"a mistake was tried {events[-1]['attempt']} times")


def check_status(case, probe, service, directory, job):
    """What a client of the RPC is told: the code, and the field in the details."""
    path = directory / "spec.json"
    path.write_text(json.dumps(job))
    done = subprocess.run(
        [str(probe), service.address, str(path)], capture_output=True, text=True, timeout=60
    )
    expect(done.returncode == 0, done.stderr)
    status = json.loads(done.stdout)
    expect(status.get("code") == INVALID_ARGUMENT, f"the status is {status}")
    details = [entry for entry in status["details"] if entry["@type"].endswith("BadRequest")]
    expect(len(details) == 1, f"not one BadRequest in {status}")
    violations = details[0]["fieldViolations"]
    expect(
        len(violations) == 1
        and violations[0]["field"] == case.field
        and case.matches(violations[0]["description"]),
        f"the violations are {violations}, expected one of {case.field}",
    )


def check_traces(case, service, job):
    service.expect_gone("tessera-trainer")
    output = pathlib.Path(job["training"].get("output_dir", "/nowhere"))
    names = sorted(path.name for path in output.iterdir()) if output.is_dir() else []
    expect(names == sorted(case.leaves), f"the output directory holds {names}")
    half = [path for path in output.rglob("*") if path.name.endswith(".tmp")]
    expect(not half, f"half-written: {half}")


def run_case(case, options, service, alone):
    number = CASES.index(case)
    directory = service.directory / f"case-{number}{'-alone' if alone else ''}"
    directory.mkdir()
    job, path = prepare(case, options.assets, directory)
    mount = mounted(directory / "output", case.mount) if case.mount else contextlib.nullcontext()
    with mount:
        address = () if alone else ("--address", service.address)
        code, events, errors = run_job(service, *address, "run", str(path))
        check_error(case, code, events, errors)
        if case.stage == SUBMIT and not alone:
            check_status(case, options.probe, service, directory, job)
        check_traces(case, service, job)
    if alone:
        service.expect_gone()
    else:
        service.expect_nothing_unfinished()


def run_table(options, cases, service, alone=False):
    failed = []
    for case in cases:
        name = f"{case.name} (tessera run alone)" if alone else case.name
        try:
            run_case(case, options, service, alone)
            print(f"ok: {name}: {case.stage}", flush=True)
        except MountError as error:
            print(f"SKIPPED, NOT TESTED: {name}: this test may not mount: {error}", flush=True)
        except ProductError as failure:
            failed.append(name)
            print(f"FAILED: {name}: {failure}", flush=True)
            end_unfinished(service)
    return failed


def end_unfinished(service):
    """So that one failure is not the next ones' as well."""
    for job in service.unfinished():
        service.call("cancel", job["id"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--probe", required=True, type=pathlib.Path)
    parser.add_argument("names", nargs="*", metavar="CASE")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.names or case.name in options.names]
    with cluster(options.bin) as service, service.up("--cpu-slots", "2"):
        failed = run_table(options, cases, service)
    with cluster(options.bin) as service:
        alone = [case for case in cases if case.name in ALONE]
        failed += run_table(options, alone, service, alone=True)
    print(f"{len(cases)} bad inputs, {len(failed)} failures: {failed}", flush=True)
    sys.exit(1 if failed or not cases else 0)


if __name__ == "__main__":
    main()
