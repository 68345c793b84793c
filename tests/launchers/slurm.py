"""A Slurm cluster of this machine's own: munged, slurmctld and slurmd as processes in a directory.

Nodes are slurmd processes with names (-N) and ports of their own. Skips (77) where Slurm is not
installed.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import stat
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))

from cluster import expect, wait_until

SKIP = 77
CPUS = 2
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=10
"""


def require_slurm():
    missing = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if missing:
        print(f"skipped: there is no {', '.join(missing)} (slurmctld, slurmd, munge)")
        sys.exit(SKIP)


def free_ports(count):
    """Ports that the kernel chose; all are held until all are known."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Slurm:
    def __init__(self, directory, nodes=("n1", "n2"), gpus=0):
        """`gpus`: of each node, for Slurm to give out; plain files stand for their devices."""
        self.gpus = gpus
        self.directory = pathlib.Path(directory)
        self.conf = self.directory / "slurm.conf"
        self.wrappers = self.directory / "bin"
        self.environment = {
            **{name: os.environ[name] for name in ("HOME",) if name in os.environ},
            "PATH": f"{self.wrappers}:{PATH}",
            "SLURM_CONF": str(self.conf),
        }
        self.nodes = nodes
        self.processes = {}

    def __enter__(self):
        for name in ("munge", "state", "log", "bin", *(f"spool-{node}" for node in self.nodes)):
            (self.directory / name).mkdir(parents=True)
        self.write_conf()
        try:
            self.start_munge()
            self.start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
            for node in self.nodes:
                self.start_node(node)
            wait_until(lambda: self.states() == ["idle"] * len(self.nodes), "Slurm's nodes")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def write_conf(self):
        host = os.uname().nodename
        ports = free_ports(1 + len(self.nodes))
        user = subprocess.check_output(["id", "-un"], text=True).strip()
        text = CONF.format(host=host, ports=ports, user=user, directory=self.directory)
        for node, port in zip(self.nodes, ports[1:], strict=True):
            text += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port}"
            text += f" CPUs={CPUS} RealMemory=1000{f' Gres=gpu:{self.gpus}' if self.gpus else ''}\n"
        text += f"PartitionName=main Nodes={','.join(self.nodes)} Default=YES State=UP\n"
        if self.gpus:
            text += "GresTypes=gpu\n"
            self.write_gres()
        self.conf.write_text(text)

    def write_gres(self):
        lines = []
        for node in self.nodes:
            for index in range(self.gpus):
                (self.directory / f"{node}-gpu{index}").touch()
            files = f"{self.directory}/{node}-gpu[0-{self.gpus - 1}]"
            lines.append(f"NodeName={node} Name=gpu File={files}\n")
        (self.directory / "gres.conf").write_text("".join(lines))

    def start_munge(self):
        folder = self.directory / "munge"
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(stat.S_IRUSR)
        self.start(
            *("munged", "munged", "--foreground", "--force"),
            *(f"--{name}-file={folder}/{name}" for name in ("key", "pid", "seed", "log")),
            f"--socket={folder}/socket",
        )
        wait_until((folder / "socket").exists, "munged's socket")

    def start(self, name, *command):
        program = shutil.which(command[0], path=PATH)
        with (self.directory / "log" / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [program, *command[1:]], stdout=log, stderr=log, env=self.environment
            )

    def start_node(self, node):
        self.start(node, "slurmd", "-D", "-f", str(self.conf), "-N", node)

    def end_node(self, node):
        """The machine is gone: its daemon and all that it started, at once."""
        self.processes.pop(node).kill()
        mine = f"SLURMD_NODENAME={node}".encode()
        conf = f"SLURM_CONF={self.conf}".encode()
        for entry in pathlib.Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                words = entry.read_bytes().split(b"\0")
                if mine in words and conf in words:
                    os.kill(int(entry.parent.name), signal.SIGKILL)

    def call(self, program, *arguments, check=True):
        done = subprocess.run(
            [shutil.which(program, path=PATH), *arguments],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=60,
        )
        expect(not check or done.returncode == 0, f"{program} {arguments}: {done.stderr}")
        return done.stdout

    def states(self):
        return self.call("sinfo", "--noheader", "--Node", "--format", "%T", check=False).split()

    def jobs(self):
        """(id, state, name, comment) of all jobs, oldest first."""
        lines = self.call(
            "squeue", "--noheader", "--states=all", "--format", "%i|%T|%j|%k"
        ).splitlines()
        return sorted((tuple(line.split("|")) for line in lines), key=lambda job: int(job[0]))

    def details(self, job):
        """What Slurm knows of a job, fields by name."""
        words = self.call("scontrol", "show", "--details", "--oneliner", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def live(self):
        return [job for job in self.jobs() if job[1] in ("PENDING", "RUNNING", "COMPLETING")]

    def wrap(self, program, script):
        """Puts a script before a program: "$real" is the program itself."""
        real = shutil.which(program, path=PATH)
        path = self.wrappers / program
        path.write_text(f"#!/bin/sh\nreal={real}\n{script}\n")
        path.chmod(0o755)

    def unwrap(self, program):
        (self.wrappers / program).unlink()

    def stop(self):
        if "slurmctld" in self.processes:
            self.call("scancel", "--full", "--signal=KILL", "--me", check=False)
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            if process.poll() is None:
                process.kill()
                process.wait()
