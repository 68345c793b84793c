#!/usr/bin/env python3
"""A whole service whose disks fill up under a running job.

full_disk_test.py --bin DIR --assets DIR [--all]

The disk of the coordinator's state, and of the agent's, too: the job goes on, and nothing is lost.
The disk of the output: the job fails and says so, and the last complete checkpoint is gone on from.
"""

import argparse
import contextlib
import pathlib
import sys
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
from cluster import Follower, ProductError, cluster, expect, wait_until
from disks import MountError, full, mounted
from inotify import DirectoryWatch
from jobs import sft_job, sha256
from submitted import submit

SKIPPED = 77
STEPS, SAVE_STEPS = 300, 20
FULL_AT = 40
# A checkpoint is this long after the disk was full.
PROVEN_AT = 120


def make_job(options, output, **training):
    output.mkdir(exist_ok=True)
    training = {"max_steps": STEPS, "save_steps": SAVE_STEPS} | training
    return sft_job(options.assets, output, ranks=2, **training)


def weights(output):
    return sha256(output / "final" / "model.safetensors")


def undisturbed(options):
    with cluster(options.bin) as service, service.up("--cpu-slots", "2"):
        output = service.directory / "output"
        follower = Follower(service, "watch", submit(service, "job", make_job(options, output)))
        follower.follow(lambda event: None)
        expect(follower.end()[0] == 0, f"{follower.events[-1]}")
        return weights(output)


def takes_changes(port):
    """What /metrics says of it, for the alert."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        return "tessera_state_writable 1" in response.read().decode().splitlines()


def while_full(options, service, output, job, port):
    """What holds while the disk of the state is full."""
    proven = output / f"checkpoint-{PROVEN_AT}"
    wait_until(proven.exists, "the job to go on")
    expect(service.query("get", job)[0]["state"] == "RUNNING", "the job is not shown as it was")
    other = sft_job(options.assets, service.directory / "other")
    done = service.call("submit", str(service.write_job("other", other)))
    expect(done.returncode != 0, "a job was taken on a full disk")
    expect("full" in done.stderr and str(service.state_dir) in done.stderr, done.stderr)
    expect(not takes_changes(port), "/metrics says that changes are taken")


def full_state(options, baseline, is_of_agent=False):
    """One attempt, every step seen, the weights of an undisturbed run."""
    with cluster(options.bin) as service, mounted(service.state_dir, "mode=0700,size=64m"):
        if not is_of_agent:
            (service.directory / "agent").mkdir()
            (service.state_dir / "agent").symlink_to(service.directory / "agent")
        with service.up("--cpu-slots", "2"):
            output = service.directory / "output"
            job = submit(service, "job", make_job(options, output))
            (coordinator,) = service.pids("tesserad")
            port = (service.state_dir / "http.port").read_text().strip()
            follower = Follower(service, "watch", job)

            def on_event(event):
                if event.get("step", {}).get("step") == FULL_AT:
                    with full(service.state_dir):
                        while_full(options, service, output, job, port)
                    wait_until(lambda: takes_changes(port), "/metrics to say that it is over")

            follower.follow(on_event)
            code, errors = follower.end()
            last = follower.events[-1]
            expect(code == 0, f"exit code {code}, {last}: {errors}")
            expect(last["attempt"] == 1, f"{last}: the ranks did not go on")
            expect(service.pids("tesserad") == [coordinator], "tesserad was started anew")
            steps = [event["step"]["step"] for event in follower.events if "step" in event]
            expect(steps == list(range(1, STEPS + 1)), f"the steps are {steps}")
            expect(weights(output) == baseline, "the final weights differ")


def full_state_and_agent(options, baseline):
    full_state(options, baseline, is_of_agent=True)


def full_output(options, baseline):
    with (
        cluster(options.bin) as service,
        mounted(service.directory / "output", "size=64m"),
        service.up("--cpu-slots", "2"),
    ):
        output = service.directory / "output"
        watch = DirectoryWatch(output)
        job = submit(service, "job", make_job(options, output))
        follower = Follower(service, "watch", job)
        disk = contextlib.ExitStack()
        is_full = []

        def on_name():
            names = watch.read()
            if not is_full and f"checkpoint-{SAVE_STEPS}" in names:
                disk.enter_context(full(output))
                is_full.append(True)

        follower.follow(lambda event: None, [(watch.descriptor, on_name)])
        watch.close()
        code, errors = follower.end()
        failure = follower.events[-1]["state"]["failure"]
        expect(code == 1 and failure["kind"] == "USER", f"exit code {code}, {failure}")
        expect("No space left" in failure["message"], f"{failure}: {errors}")
        expect(str(output) in failure["message"], f"{failure}")
        disk.close()
        left = sorted(path.name for path in output.glob("checkpoint-*"))
        expect(left, "no checkpoint is left")
        again = make_job(options, output, resume_from_checkpoint="latest")
        follower = Follower(service, "watch", submit(service, "again", again))
        follower.follow(lambda event: None)
        expect(follower.end()[0] == 0, f"{follower.events[-1]}")
        first = next(event["step"]["step"] for event in follower.events if "step" in event)
        expect(first > SAVE_STEPS, f"it began anew at step {first}, not from {left}")
        expect(weights(output) == baseline, "the final weights differ")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--all", action="store_true", help="with the agent's disk, too")
    options = parser.parse_args()
    scenarios = [full_state, full_output, *([full_state_and_agent] if options.all else [])]
    baseline = undisturbed(options)
    failed = False
    for scenario in scenarios:
        try:
            scenario(options, baseline)
            print(f"ok: {scenario.__name__}", flush=True)
        except MountError as failure:
            print(f"SKIPPED: this test may not mount: {failure}", flush=True)
            sys.exit(SKIPPED)
        except ProductError as failure:
            failed = True
            print(f"FAILED: {scenario.__name__}: {failure}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
