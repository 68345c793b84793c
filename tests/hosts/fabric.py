"""Machines on this one: each has namespaces of its own (network, processes, host name, IPC,
mounts), and one cable to a switch.

The switch is a bridge in a namespace of its own, where faults are made: a port goes down, nftables
drops frames of one way or both, or some of them, and tc slows a port down. Files are shared, as by
a shared file system. A namespace lives as long as its first process, which ends when the pipe to it
is closed: what is killed here leaves nothing behind.
"""

import contextlib
import pathlib
import subprocess
import sys

from cluster import expect, program, wait_until

CABLE = pathlib.Path(__file__).resolve().parent / "cable.py"
# The first process takes in orphans; it ends with its standard input.
FIRST = 'hostname "$0" && ip link set lo up && echo ready && while read -r _; do :; done'
ISOLATED = ("--net", "--pid", "--fork", "--mount-proc", "--uts", "--ipc", "--kill-child")


def run(*command, text=None):
    done = subprocess.run(
        [str(word) for word in command],
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    expect(done.returncode == 0, f"{' '.join(map(str, command))}: {done.stdout.strip()}")
    return done.stdout


def why_not():
    """Why there can be no such machines here; None: there can."""
    for tool in ("unshare", "nsenter", "ip", "nft", "tc"):
        try:
            program(tool)
        except FileNotFoundError as missing:
            return str(missing)
    try:
        with Fabric() as fabric:
            host = Host(fabric, "probe", 1)
            fabric.drop(("probe", "probe"), percent=1)
            fabric.slow("1mbit")
            host.power_off()
    except Exception as failure:
        return f"namespaces with a bridge, nftables and tc cannot be made here: {failure}"
    return None


class Namespace:
    def __init__(self, name):
        self._holder = subprocess.Popen(
            ["unshare", *ISOLATED, "bash", "-c", FIRST, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said = self._holder.stdout.readline().strip()
        if said != "ready":
            self.end()
            expect(False, f"no namespaces for {name}: {said}")
        task = f"/proc/{self._holder.pid}/task/{self._holder.pid}/children"
        self.pid = int(pathlib.Path(task).read_text())
        # Words before a command that is to run there.
        self.enter = ("nsenter", "-t", str(self.pid), "-a", "--")

    def net(self, *command, text=None):
        """Runs a tool of this machine on the namespace's network."""
        return run("nsenter", "-t", self.pid, "-n", "--", *command, text=text)

    def end(self):
        """Kills all that runs there."""
        with contextlib.suppress(OSError):
            self._holder.stdin.close()
        self._holder.kill()  # takes the first process along, and that all others
        self._holder.wait()
        self._holder.stdout.close()


class Fabric:
    """The switch. Use as a context; hosts end with it."""

    def __init__(self):
        self._hosts = {}

    def __enter__(self):
        self._switch = Namespace("switch")
        try:
            self._ip("link", "add", "bridge", "type", "bridge")
            self._ip("link", "set", "bridge", "up")
            self.drop()
        except BaseException:
            self._switch.end()
            raise
        return self

    def __exit__(self, *_):
        for host in list(self._hosts.values()):
            host.power_off()
        self._switch.end()

    def _ip(self, *words):
        self._switch.net("ip", *words)

    def plug_in(self, host, delay_ms):
        """A cable from the host's eth0 to a port of the switch, which has the host's name. With a
        delay (of each way, and up to half as much more by chance) a process carries the frames,
        which is returned."""
        cable = None
        if delay_ms:
            ends = (host.pid, "eth0", self._switch.pid, host.name)
            words = [CABLE, *ends, delay_ms, delay_ms // 2]
            cable = subprocess.Popen(
                [sys.executable, "-B", *map(str, words)], stdout=subprocess.PIPE, text=True
            )
            expect(cable.stdout.readline() == "ready\n", f"no long cable to {host.name}")
        else:
            self._ip("link", "add", host.name, "type", "veth", "peer", "eth0", "netns", host.pid)
        self._ip("link", "set", host.name, "master", "bridge", "up")
        self._hosts[host.name] = host
        return cable

    def unplug(self, host):
        """Pulls the cable; whatever the host still says is lost."""
        del self._hosts[host.name]
        self._ip("link", "delete", host.name)

    def link(self, host, state):
        """The host's cable: "down" or "up"."""
        self._ip("link", "set", host.name, state)

    def drop(self, *ways, percent=None, longer_than=None):
        """Loses frames of these ways, (from, to) by names of hosts, and of no others: all, a random
        part of them, or those of more bytes. Nobody is told."""
        which = "" if percent is None else f"numgen random mod 100 < {percent}"
        which += "" if longer_than is None else f" meta length > {longer_than}"
        rules = [f'add rule bridge f way iifname "{a}" oifname "{b}" {which} drop' for a, b in ways]
        begin = [
            "add table bridge f",
            "add chain bridge f way { type filter hook forward priority 0; }",
            "flush chain bridge f way",
        ]
        self._switch.net("nft", "-f", "-", text="\n".join([*begin, *rules]) + "\n")

    def isolate(self, host):
        """Loses all that the host sends and is sent, with its link still up."""
        others = [name for name in self._hosts if name != host.name]
        self.drop(*((host.name, name) for name in others), *((name, host.name) for name in others))

    def slow(self, rate):
        """What a host is sent comes at no more than this rate (as tc has it)."""
        limits = ("burst", "16kb", "latency", "500ms")
        for name in self._hosts:
            port = ("tc", "qdisc", "replace", "dev", name, "root")
            self._switch.net(*port, "tbf", "rate", rate, *limits)

    def mend(self):
        for host in self._hosts.values():
            self.link(host, "up")
        self.drop()


class Host(Namespace):
    """A machine at 10.77.0.NUMBER."""

    def __init__(self, fabric, name, number, delay_ms=0):
        super().__init__(name)
        self._fabric = fabric
        self.name = name
        self.number = number
        self.address = f"10.77.0.{number}"
        try:
            self._cable = fabric.plug_in(self, delay_ms)
            self.net("ip", "link", "set", "eth0", "address", f"02:00:00:00:00:{number:02x}")
            self.net("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
            self.net("ip", "link", "set", "eth0", "up")
        except BaseException:
            self.end()
            raise

    def power_off(self):
        """All of it is gone at once, and no FIN or RST says so."""
        self._fabric.unplug(self)
        if self._cable:
            self._cable.kill()
            self._cable.wait()
            self._cable.stdout.close()
        self.end()

    def start(self, command, log):
        """Starts a program there; it ends with the host."""
        with log.open("ab") as out:
            return subprocess.Popen(
                [*self.enter, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    def can_reach(self, other):
        connect = f"exec 3<>/dev/tcp/{other.address}/1"
        done = subprocess.run(
            [*self.enter, "timeout", "5", "bash", "-c", connect], capture_output=True, text=True
        )
        return "refused" in done.stderr


def make_hosts(fabric, names, delay_ms=0):
    """Hosts by name, once they can reach each other's addresses. The first has no delay."""
    first, *others = names
    hosts = {first: Host(fabric, first, 1)}
    hosts |= {name: Host(fabric, name, i, delay_ms) for i, name in enumerate(others, 2)}
    first, *others = hosts.values()
    for other in others:
        wait_until(lambda host=other: host.can_reach(first), f"{other.name} to reach {first.name}")
    return hosts
