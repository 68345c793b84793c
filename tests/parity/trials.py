"""What tests that run tessera-trainer by itself share: small jobs, what they say, and checks of
which each runs though another failed.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import ranks
from job_fields import set_fields

# Methods that train on completions made for them.
ONLINE = ("grpo", "rloo", "online_dpo", "ppo")


class TrialError(Exception):
    """What came out otherwise than it should."""


def expect(condition, message):
    if not condition:
        raise TrialError(message)


def parse(doc, extend=None):
    """Options of the command line; `extend` adds a test's own to the parser."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    if extend:
        extend(parser)
    options = parser.parse_args()
    options.assets = options.assets.resolve()
    return options


class Trials:
    """Runs checks: functions that return a line on what they saw, or raise a TrialError."""

    def __init__(self):
        self.failed = False

    def attempt(self, name, check, *arguments):
        try:
            print(f"ok: {name}: {check(*arguments)}", flush=True)
        except (TrialError, ranks.RunError, subprocess.SubprocessError) as problem:
            self.failed = True
            print(f"FAILED: {name}: {problem}", flush=True)

    def finish(self):
        sys.exit(1 if self.failed else 0)


def run_each(doc, *checks):
    """The whole of a test whose checks take the options and a directory of their own."""
    options = parse(doc)
    trials = Trials()
    for check in checks:
        with tempfile.TemporaryDirectory() as scratch:
            trials.attempt(check.__name__, check, options, pathlib.Path(scratch))
    trials.finish()


def make_spec(
    options, output, world=1, *, method="sft", model="qwen3", train="short", fields=None, **training
):
    """A JobSpec on a model and a file of the assets; `fields` are set by their paths."""
    spec = {
        "name": "trial",
        "method": {method: {} if method in ONLINE else {"max_length": 64}},
        "model": {
            "path": str(options.assets / "models" / model),
            "tokenizer": str(options.assets / "tokenizer"),
        },
        "data": {
            "rollouts" if method in ONLINE else "train": str(
                options.assets / "data" / f"{train}.jsonl"
            )
        },
        "training": {"learning_rate": 1e-3, "output_dir": str(output)} | training,
        "parallelism": {"num_processes": world},
        "resources": {"device": "cpu", "cpu_threads": 1},
    }
    return set_fields(spec, fields or {})


def train(options, spec):
    """Rank 0's events."""
    with tempfile.TemporaryDirectory() as scratch:
        return ranks.run(options.trainer, spec, spec["parallelism"]["num_processes"], scratch)


def steps_of(events):
    return {event["step"]["step"]: event["step"] for event in events if "step" in event}


def last_memory(events):
    return [event["memory"] for event in events if "memory" in event][-1]


def final_directory(events):
    return pathlib.Path(events[-1]["finished"]["output"])


def files_of(directory):
    """Contents by name, of all files below it."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def run_alone(options, spec, scratch, *flags):
    """(exit code, what it printed) of the trainer as the only rank; it may fail."""
    return ask(options, {"spec": spec, "job_id": "trial", "attempt": 1}, scratch, *flags)


def ask(options, message, scratch, *flags):
    """The same of any input."""
    path = scratch / "alone.json"
    path.write_text(json.dumps(message))
    done = subprocess.run(
        [options.trainer, "--input", path, *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=ranks.TIMEOUT_SECONDS,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    expect(lines, f"the trainer ended with {done.returncode} and printed nothing: {done.stderr}")
    return done.returncode, lines


def rehearse(options, spec, scratch):
    code, lines = run_alone(options, spec, scratch, "--rehearse")
    expect(code == 0, f"the rehearsal ended with {code}")
    return lines[-1]


def held(report):
    """Bytes at the peak by space and owner, of a rehearsal or a memory event, and both peaks."""
    found = {"peak": int(report["peakBytes"]), "host peak": int(report.get("hostPeakBytes", 0))}
    for space, field in (("", "owners"), ("host ", "hostOwners")):
        for owner in report.get(field, []):
            found[space + owner["owner"]] = int(owner.get("atPeakBytes", 0))
    return found
