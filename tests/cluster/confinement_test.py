#!/usr/bin/env python3
"""Jobs of an agent with --allow-path: they train beneath those directories, and nowhere else.

confinement_test.py --bin DIR --assets DIR

What lies outside holds a mark. Whatever a job names, links or swaps, the mark turns up nowhere, and
nothing outside changes.
"""

import argparse
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys

from breaking import edit_json
from cluster import Follower, ProductError, cluster, expect, run_job, wait_until
from escapes import BY_CONTENT, BY_PATH, MARK
from jobs import sft_job, sha256
from landlock import has_landlock, without_call
from submitted import submit, wait_for_state

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import job_fields

SKIPPED = 77
RULE = "must lie, links followed, in one of"
STEPS, SAVE_STEPS, KILLED_AT = 200, 20, 40
LONG = 100_000  # steps: never done while a test runs


def library_directories(program):
    """Where the dynamic linker finds what is not the system's."""
    told = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    files = [word for word in told.split() if word.startswith("/")]
    found = {str(pathlib.Path(file).resolve().parent) for file in files}
    return sorted(path for path in found if not path.startswith(("/usr/", "/lib")))


class Confined:
    """A coordinator, and an agent whose jobs may use `allowed` alone."""

    def __init__(self, options, service):
        self.options, self.service = options, service
        self.allowed, self.outside = service.directory / "allowed", service.directory / "outside"
        for name in ("models/qwen3", "tokenizer", "data"):
            shutil.copytree(options.assets / name, self.allowed / name)
            shutil.copytree(options.assets / name, self.outside / name)
        edit_json("models/qwen3/config.json", lambda c: c.update(model_type=MARK))(
            None, self.outside
        )
        for name in ("tokenizer/tokenizer.json", "data/short.jsonl", "secret.json"):
            (self.outside / name).write_text(f'{{"{MARK}": cut off')
        (self.outside / "taken").mkdir()
        self.before = self.snapshot()

    def snapshot(self):
        return {
            str(path): sha256(path) if path.is_file() else "" for path in self.outside.rglob("*")
        }

    def agent_command(self, *flags):
        reads = library_directories(self.service.binaries / "tessera-trainer")
        return [
            str(self.service.binaries / "tessera-agent"),
            *("--coordinator", self.service.address, "--node", "confined", "--cpu-slots", "2"),
            *("--cuda-devices", "none", "--state-dir", str(self.service.directory / "agent")),
            *("--allow-path", str(self.allowed)),
            *(word for path in reads for word in ("--allow-read", path)),
            *flags,
        ]

    @contextlib.contextmanager
    def up(self, **popen):
        """The agent, for the length of the block; `popen`: how to start it."""
        log = (self.service.directory / "agent.log").open("ab")
        agent = subprocess.Popen(self.agent_command(), stderr=log, **popen)
        wait_until(
            lambda: (
                agent.poll() is not None
                or any(node["state"] == "READY" for node in self.service.query("nodes"))
            ),
            "the agent to be ready",
        )
        try:
            yield agent
        finally:
            agent.terminate()
            agent.wait()
            log.close()

    def job(self, name, **training):
        return sft_job(self.allowed, self.allowed / "out" / name, 2, **training) | {"name": name}

    def run(self, job, on_event=lambda event: None):
        """The events of a job that succeeds."""
        path = self.service.write_job(job["name"], job)
        follower = Follower(self.service, "--address", self.service.address, "run", str(path))
        follower.follow(on_event)
        code, errors = follower.end()
        expect(code == 0, f"{job['name']} exited with {code}: {follower.events[-1:]} {errors}")
        return follower.events

    def weights(self, name):
        return sha256(self.allowed / "out" / name / "final" / "model.safetensors")

    def check_outside(self):
        expect(self.snapshot() == self.before, "something outside has changed")


@contextlib.contextmanager
def coordinator(service):
    service.state_dir.mkdir()
    command = [str(service.binaries / "tesserad"), "--state-dir", str(service.state_dir)]
    with (service.directory / "tesserad.log").open("ab") as log:
        process = subprocess.Popen([*command, "--http", ""], stderr=log)
    wait_until(lambda: service.call("nodes").returncode == 0, "the coordinator to answer")
    yield
    process.terminate()
    expect(process.wait() == 0, "tesserad did not end in order")


def trains(confined):
    """Checkpoints, a killed rank, traces, event files, offloading, export and a later job."""
    service = confined.service
    confined.run(confined.job("whole", max_steps=STEPS, save_steps=SAVE_STEPS))
    job = confined.job("struck", max_steps=STEPS, save_steps=SAVE_STEPS)
    job["training"] |= {"profile_steps": [2], "report_to": "tensorboard"}
    job["memory"] = {"activation_offloading_dir": str(confined.allowed / "offload")}
    job["memory"]["activation_offloading"] = True
    (confined.allowed / "offload").mkdir()
    killed = []

    def kill_a_rank(event):
        if event.get("step", {}).get("step", 0) >= KILLED_AT and not killed:
            pid = service.rank_pid(1)
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            expect("NoNewPrivs:\t1" in status, "a rank may gain privileges")
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    events = confined.run(job, kill_a_rank)
    expect(events[-1]["attempt"] == 2, f"it ended in attempt {events[-1]['attempt']}")
    expect(confined.weights("struck") == confined.weights("whole"), "the weights differ")
    output = confined.allowed / "out" / "struck"
    expect((output / "traces" / "step-2-rank-0.json").is_file(), "there is no trace")
    expect(list(output.glob("runs/**/events*")), "there are no event files")
    later = confined.job("later", max_steps=STEPS)
    later["training"]["resume_from_checkpoint"] = str(output / f"checkpoint-{SAVE_STEPS}")
    confined.run(later)
    expect(confined.weights("later") == confined.weights("whole"), "the later job's weights differ")


def makes_completions(confined):
    """Prompts, rules that read a schema, and records of what was made."""
    (confined.allowed / "schema.json").write_text('{"type": "object"}')
    prompts = confined.allowed / "prompts.jsonl"
    prompts.write_text("".join(f'{{"prompt": "tile {i}"}}\n' for i in range(8)))
    job = confined.job("online", max_steps=2, per_device_train_batch_size=4)
    schema = {"schema": str(confined.allowed / "schema.json")}
    job |= {
        "method": {"grpo": {"num_generations": 4, "max_completion_length": 8}},
        "data": {"train": str(prompts)},
        "generation": {"record_to": str(confined.allowed / "records")},
        "reward_funcs": [{"name": "judge", "json_schema": schema}],
    }
    confined.run(job)
    expect(any((confined.allowed / "records").iterdir()), "there are no records")


def refuse(confined, case, number):
    """One error of the field, when the job is submitted."""
    directory = confined.allowed / f"case-{number}"
    directory.mkdir()
    job = confined.job(f"case-{number}")
    fields = case.break_job(confined.allowed, confined.outside, directory)
    job_fields.set_fields(job, fields)
    path = confined.service.write_job(job["name"], job)
    code, events, errors = run_job(
        confined.service, "--address", confined.service.address, "run", str(path)
    )
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    expect(code == 2 and not events, f"exit code {code}, events {events}")
    expect(len(lines) == 1, f"not one error but {errors}")
    expect(case.field in lines[0], f"{lines[0]!r} does not name {case.field}")
    pattern = RULE if case in BY_PATH else case.pattern
    expect(pattern in lines[0], f"{lines[0]!r} does not say {pattern!r}")
    expect(MARK not in errors, f"it was read: {errors}")


def refuses(confined):
    failed = []
    for number, case in enumerate((*BY_PATH, *BY_CONTENT)):
        try:
            refuse(confined, case, number)
        except ProductError as failure:
            failed.append(f"{case.name}: {failure}")
    expect(not failed, "\n".join(failed))
    expect(not confined.service.query("list"), "a job that was refused is there")
    confined.check_outside()


def swap(path, target):
    """The directory is a link to another one from now on."""
    path.rename(path.with_name(f"{path.name}-was"))
    path.symlink_to(target)


def finds_out_later(confined):
    """A directory that is swapped for a link after the job was taken."""
    service = confined.service
    for name, what in (("model", "models/qwen3"), ("data", "data")):
        shutil.copytree(confined.allowed / what, confined.allowed / f"swapped-{name}")
        blocker = submit(service, f"blocker-{name}", confined.job("blocker", max_steps=LONG))
        wait_for_state(service, blocker, "RUNNING")
        victim = confined.job(f"swapped-{name}")
        path = confined.allowed / f"swapped-{name}"
        if name == "model":
            victim["model"]["path"] = str(path)
        else:
            victim["data"]["train"] = str(path / "short.jsonl")
        job = submit(service, f"swapped-{name}", victim)
        swap(path, confined.outside / what)
        expect(service.call("cancel", blocker).returncode == 0, "the blocker cannot be cancelled")
        failed = wait_for_state(service, job, "FAILED")
        expect("ermission denied" in failed["reason"], f"it failed by {failed['reason']}")
        expect(failed["failure"]["kind"] == "USER", f"it failed by {failed['failure']}")
    confined.check_outside()


def writes_elsewhere(confined):
    """An output directory that becomes a link while the job runs."""
    output = confined.allowed / "out" / "leaving"
    job = confined.job("leaving", max_steps=LONG, save_steps=20)
    job["resources"] = {"max_restarts": 0}
    number = submit(confined.service, "leaving", job)
    wait_until(lambda: list(output.glob("checkpoint-*")), "a checkpoint")
    swap(output, confined.outside / "taken")
    failed = wait_for_state(confined.service, number, "FAILED")
    expect("ermission denied" in failed["reason"], f"it failed by {failed['reason']}")
    confined.check_outside()


def needs_the_kernel(confined):
    """Without Landlock the agent does not start; where it fails later, no program does."""
    done = subprocess.run(
        confined.agent_command(),
        capture_output=True,
        text=True,
        preexec_fn=without_call("landlock_create_ruleset"),
        timeout=60,
    )
    expect(done.returncode == 1, f"exit code {done.returncode}")
    expect("--allow-path takes a kernel with Landlock" in done.stderr, done.stderr)
    with confined.up(preexec_fn=without_call("landlock_restrict_self")):
        path = confined.service.write_job("unconfined", confined.job("unconfined"))
        code, _, errors = run_job(
            confined.service, "--address", confined.service.address, "run", str(path)
        )
        expect(code != 0 and "cannot run" in errors, f"exit code {code}: {errors}")
        expect(not (confined.allowed / "out" / "unconfined").exists(), "it ran unconfined")


def check_mark(confined):
    """Nothing that the service wrote has what lies outside."""
    for path in confined.service.directory.rglob("*"):
        links_out = path.is_symlink() or path.is_relative_to(confined.outside)
        if links_out or not path.is_file():
            continue
        expect(MARK.encode() not in path.read_bytes(), f"{path} holds the mark")


SCENARIOS = (trains, makes_completions, finds_out_later, writes_elsewhere)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    if not has_landlock():
        print("SKIPPED: this kernel has no Landlock")
        sys.exit(SKIPPED)
    with cluster(options.bin) as service:
        confined = Confined(options, service)
        with coordinator(service):
            needs_the_kernel(confined)
            print("ok: nothing runs where the kernel cannot confine", flush=True)
            with confined.up():
                refuses(confined)
                print(f"ok: {len(BY_PATH) + len(BY_CONTENT)} ways out", flush=True)
                for scenario in SCENARIOS:
                    scenario(confined)
                    print(f"ok: {scenario.__doc__}", flush=True)
        check_mark(confined)
        print("ok: the mark is nowhere", flush=True)


if __name__ == "__main__":
    main()
