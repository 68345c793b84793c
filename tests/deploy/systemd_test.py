#!/usr/bin/env python3
"""The units under a real systemd: a job goes on while its agent and the coordinator are restarted.

systemd_test.py --build DIR --assets DIR

For root, where namespaces are allowed and cgroup2 is mounted: a target, not a test of ctest.
"""

import argparse
import contextlib
import json
import pathlib
import signal
import subprocess
import tempfile

from deployed import check, expect, run, sft_job, wait_until

STARTER = pathlib.Path(__file__).resolve().parent / "systemd_root.sh"
SOCKET = "unix:/run/tessera/tesserad.sock"
AS_TESSERA = ["setpriv", "--reuid=tessera", "--regid=tessera", "--clear-groups", "env", "HOME=/tmp"]


class Machine:
    """A systemd in namespaces of its own; `pid` is its number out here."""

    def __init__(self, pid):
        self.enter = ("nsenter", "-t", pid, "-a", "env", "PATH=/usr/local/bin:/usr/bin:/bin:/sbin")

    def run(self, *command, **options):
        return run(*self.enter, *command, **options)

    def check(self, *command, **options):
        return check(*self.enter, *command, **options)

    def tessera(self, *command):
        return self.run(*AS_TESSERA, "tessera", "--address", SOCKET, *command)

    def job(self, name):
        code, output = self.tessera("--json", "get", name)
        expect(code == 0, output)
        return json.loads(output)

    def main_pid(self, unit):
        return self.check("systemctl", "show", "-P", "MainPID", unit).strip()


def init_of(starter):
    """The child of unshare, once it is systemd."""
    children = pathlib.Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
    for child in children:
        if pathlib.Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
            return child
    expect(starter.poll() is None, "systemd did not start")
    return None


@contextlib.contextmanager
def machine(tree, folder):
    with (folder / "log").open("wb") as log:
        (folder / "mounts").mkdir()
        starter = subprocess.Popen([STARTER, tree, folder / "mounts"], stdout=log, stderr=log)
    cgroup = pathlib.Path("/nowhere")
    try:
        pid = wait_until(lambda: init_of(starter), "systemd to start")
        mounts = check("findmnt", "-n", "-o", "TARGET", "-t", "cgroup2").split()
        cgroup = pathlib.Path(mounts[0], f"tessera-deploy-{starter.pid}")
        yield Machine(pid)
    except BaseException:
        print((folder / "log").read_text(errors="replace")[-4000:])
        raise
    finally:
        starter.send_signal(signal.SIGKILL)  # unshare takes its child along, and that all others
        starter.wait()
        if cgroup.exists():
            events = cgroup / "cgroup.events"
            wait_until(lambda: "populated 0" in events.read_text(), "its processes to be gone")
            for path in sorted(cgroup.rglob("*/"), reverse=True):
                path.rmdir()
            cgroup.rmdir()


def copy_in(host, assets, name, job):
    """Model, data and job file, as the user tessera has them."""
    parts = ("models/qwen3", "tokenizer", "data/short.jsonl")
    archive = subprocess.run(
        ["tar", "-C", assets, "-c", *parts], stdout=subprocess.PIPE, check=True
    )
    subprocess.run(
        [str(word) for word in (*host.enter, "tar", "-C", "/srv/tessera", "-x")],
        input=archive.stdout,
        check=True,
    )
    host.check("tee", f"/srv/tessera/{name}.json", input=json.dumps(job | {"name": name}))
    host.check("chown", "-R", "tessera:tessera", "/srv/tessera")


def test_restarts(host, assets):
    job = sft_job("/srv/tessera", "/srv/tessera/out", 2, max_steps=600, save_steps=100)
    copy_in(host, assets, "stays", job)
    code, name = host.tessera("submit", "/srv/tessera/stays.json")
    expect(code == 0, name)
    name = name.strip()
    wait_until(lambda: host.job(name).get("step", {}).get("step", 0) >= 20, "20 steps")
    agents = host.main_pid("tessera-agent")
    ranks = host.check("pgrep", "-x", "tessera-trainer").split()
    host.check("systemctl", "restart", "tessera-agent", "tesserad")
    expect(host.main_pid("tessera-agent") != agents, "the agent was not restarted")
    wait_until(lambda: host.tessera("nodes")[0] == 0, "the coordinator to be back")
    expect(host.check("pgrep", "-x", "tessera-trainer").split() == ranks, "ranks were ended")
    wait_until(lambda: host.job(name)["state"] == "SUCCEEDED", "the job to succeed")
    expect(host.job(name)["attempt"] == 1, f"it took {host.job(name)['attempt']} runs")


def test_confinement(host, assets):
    copy_in(host, assets, "outside", sft_job("/srv/tessera", "/var/lib/elsewhere"))
    code, output = host.tessera("submit", "/srv/tessera/outside.json")
    expect(code == 2 and "training.output_dir" in output, f"{code}: {output}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tessera-") as name:
        folder = pathlib.Path(name)
        check("cmake", "--install", options.build, "--prefix", folder / "tree", "--strip")
        folder.chmod(0o755)
        with machine(folder / "tree", folder) as host:
            wait_until(lambda: "READY" in host.tessera("nodes")[1], "the agent to be connected")
            test_restarts(host, options.assets)
            print("ok: a job outlives restarts of agent and coordinator", flush=True)
            test_confinement(host, options.assets)
            print("ok: a job cannot write elsewhere", flush=True)


if __name__ == "__main__":
    main()
