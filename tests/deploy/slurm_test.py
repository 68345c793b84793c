#!/usr/bin/env python3
"""Slurm's prolog and epilog: linted, and run on a stand-in for nvidia-smi and real processes."""

import contextlib
import os
import pathlib
import shutil
import subprocess
import tempfile

from deployed import DEPLOY, check, expect, program, run

FOLDER = DEPLOY / "slurm"
HEALTHY = {"name": "H100", "ecc.errors.uncorrected.volatile.total": "0", "pid": ""}


def write_smi(folder, answers):
    """An nvidia-smi that gives each query its answer, or fails."""
    cases = "\n".join(
        f"  *={query}\\ *) {'exit 9' if text is None else f'echo {text!r}' if text else ':'} ;;"
        for query, text in answers.items()
    )
    smi = folder / "nvidia-smi"
    smi.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}\n  *) exit 2 ;;\nesac\n')
    smi.chmod(0o755)


def prolog(folder, gpus, **settings):
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_GPUS": gpus} | settings
    return run(FOLDER / "prolog.sh", env=environment)


def test_prolog(folder):
    settings = {"TESSERA_MIN_FREE_MIB": "0"}
    write_smi(folder, HEALTHY)
    code, output = prolog(folder, "0,3", **settings)
    expect(code == 0 and not output, f"a healthy node: {code}, {output}")
    write_smi(folder, HEALTHY | {"ecc.errors.uncorrected.volatile.total": "[N/A]"})
    code, output = prolog(folder, "0", **settings)
    expect(code == 0, f"a device without ECC: {code}, {output}")
    for fault, sentence in (
        ({"name": None}, "GPU 3 does not answer"),
        ({"ecc.errors.uncorrected.volatile.total": "2"}, "GPU 3 has 2 uncorrected memory errors"),
        ({"pid": "4711"}, "GPU 3 is held by processes 4711"),
    ):
        write_smi(folder, HEALTHY | fault)
        code, output = prolog(folder, "3", **settings)
        expect(code == 1 and sentence in output, f"{fault}: {code}, {output}")
        code, output = prolog(folder, "", **settings)
        expect(code == 0, f"a job without GPUs: {code}, {output}")
    code, output = prolog(folder, "", TESSERA_MIN_FREE_MIB=str(1 << 40))
    expect(code == 1 and "/dev/shm has" in output, f"no shared memory: {code}, {output}")


@contextlib.contextmanager
def process(path, job):
    """A program that would not end by itself for an hour, with a job's number."""
    shutil.copy(program("sleep"), path)
    child = subprocess.Popen([path, "3600"], env={"SLURM_JOB_ID": job})
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def test_epilog(folder):
    state = folder / "tessera-77"
    (state / "runs").mkdir(parents=True)
    (folder / "tessera-78").mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(folder),
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_UID": str(os.getuid()),
    }
    with (
        process(folder / "tessera-trainer", "77") as leftover,
        process(folder / "tessera-agent", "78") as of_another_job,
        process(folder / "training", "77") as of_the_user,
    ):
        # The children are reaped here, so the script sees them go once they are waited for.
        script = subprocess.Popen([FOLDER / "epilog.sh"], env=environment, stderr=subprocess.PIPE)
        expect(leftover.wait(60) == -15, f"the leftover ended with {leftover.returncode}")
        output = script.communicate(timeout=60)[1].decode()
        expect(script.returncode == 0 and f"SIGTERM to {leftover.pid}" in output, output)
        expect(of_another_job.poll() is None, "a process of another job was ended")
        expect(of_the_user.poll() is None, "a process that is not tessera's was ended")
    expect(not state.exists(), "the agent's state is still there")
    expect((folder / "tessera-78").exists(), "another job's state is gone")
    # A link of the user's is not followed, and a job that left nothing is no error.
    (folder / "kept").mkdir()
    state.symlink_to(folder / "kept")
    code, output = run(FOLDER / "epilog.sh", env=environment)
    expect(code == 0 and not output and (folder / "kept").exists(), f"{code}, {output}")


def main():
    check(program("shellcheck"), *sorted(FOLDER.glob("*.sh")))
    for test in (test_prolog, test_epilog):
        with tempfile.TemporaryDirectory(prefix="tessera-") as folder:
            test(pathlib.Path(folder))
    print("ok: slurm")


if __name__ == "__main__":
    main()
