"""What happens to hosts while a job runs on them.

A scenario is a function of a Site and a Run that returns in how many attempts the job must have
ended; None: in any number. Its decorator says how many hosts there are for agents, how many ranks
the job has, and in which time the coordinator gives a host up. Where the job is slowed down, that
is by the rate of its links, which costs no CPU; once the scenario is over they are fast.
"""

import dataclasses
import pathlib
import random
import sys
import time
from collections.abc import Callable

from cluster import expect, wait_until
from fabric import run
from machines import Size

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from reward_server import build_package

TWO_RANKS = Size(num_ranks=2)
# Times of a test: a node is LOST after a lease of silence, its ranks end after the fence period,
# and the job starts elsewhere a lease after that.
QUICK = ("--lease", "2s", "--fence", "8s")
# As people have them.
DEFAULTS = ()
FAST = "1gbit"


@dataclasses.dataclass(frozen=True)
class Scenario:
    act: Callable
    num_nodes: int = 2
    size: Size = TWO_RANKS
    flags: tuple = QUICK
    rate: str = "16mbit"  # at which a step takes about half a second
    delay_ms: int = 0
    resources: dict = dataclasses.field(default_factory=dict)


TABLE = {}


def scenario(**options):
    def add(act):
        TABLE[act.__name__.replace("_", "-")] = Scenario(act, **options)
        return act

    return add


@scenario(rate=FAST)
def undisturbed(_site, _run):
    return 1


@scenario(num_nodes=4, size=Size(4), rate=FAST)
def four_hosts(_site, _run):
    return 1


def link_down_for(site, job, seconds):
    """The link of n2 is down for so long, and for as long as it takes to be noticed."""
    job.wait_for_step(5)
    site.fabric.link(site.hosts["n2"], "down")
    until = time.monotonic() + seconds
    site.wait_for_nodes("LOST", "n2")
    wait_until(lambda: time.monotonic() > until, "the link to be up again")
    expect(not job.is_over(), "the job went on without a link")
    site.fabric.mend()
    site.wait_for_nodes("READY", "n2")


@scenario(flags=("--lease", "2s", "--fence", "60s"))
def link_down(site, job):
    """For less than the fence period: the attempt goes on."""
    link_down_for(site, job, 0)
    return 1


@scenario(flags=DEFAULTS)
def link_down_60s(site, job):
    link_down_for(site, job, 60)
    return 1


def give_up_n2(site, job):
    """What has to follow where nothing of n2 reaches the coordinator: its rank ends, and only then
    the job goes on, on n1 and n3."""
    site.wait_for_nodes("LOST", "n2")
    job.wait_for_state("RUNNING", attempt=2)
    starts = [e["state"]["reason"] for e in job.seen("state") if e["state"]["state"] == "STARTING"]
    expect("n1" in starts[1] and "n3" in starts[1], starts)


@scenario(num_nodes=3)
def cut_off(site, job):
    """n2 reaches nobody, though its link is up; once it does it is of use again."""
    job.wait_for_step(5)
    site.fabric.isolate(site.hosts["n2"])
    give_up_n2(site, job)
    site.fabric.mend()
    site.wait_for_nodes("READY", "n2")
    runs = site.service.directory / "agent-n2" / "runs"
    wait_until(lambda: not list(runs.glob("*/*")), "n2 to delete the run that is not wanted")
    return 2


@scenario(num_nodes=3)
def mute(site, job):
    """What n2 says does not reach the coordinator; all else goes through, ranks' traffic too."""
    job.wait_for_step(5)
    site.fabric.drop(("n2", "c"))
    give_up_n2(site, job)
    site.fabric.mend()
    site.wait_for_nodes("READY", "n2")
    return 2


@scenario(num_nodes=3)
def deaf(site, job):
    """What the coordinator says does not reach n2."""
    job.wait_for_step(5)
    site.fabric.drop(("c", "n2"))
    give_up_n2(site, job)
    site.fabric.mend()
    site.wait_for_nodes("READY", "n2")
    return 2


@scenario(num_nodes=2, size=Size(1, num_steps=2000, save_steps=200))
def alone_and_cut_off(site, job):
    """A rank that needs nobody goes on while it is cut off, and saves, until its lease runs out."""
    job.wait_for_step(5)
    (placement,) = site.service.query("list")[0]["placements"]
    site.fabric.isolate(site.hosts[placement["node"]])
    site.wait_for_nodes("LOST", placement["node"])
    expect(job.ranks.alive() == {1}, "the rank did not go on")
    job.wait_for_state("RUNNING", attempt=2)
    site.fabric.mend()
    site.wait_for_nodes("READY", placement["node"])
    return 2


@scenario(num_nodes=3)
def host_vanishes(site, job):
    """No FIN and no RST: rank 0 waits for its peer until it is told to end. The host comes back
    with its certificate and without a token."""
    job.wait_for_step(5)
    site.hosts["n2"].power_off()
    give_up_n2(site, job)
    site.boot("n2")
    site.start_agent("n2")
    site.wait_for_nodes("READY", "n2")
    return 2


@scenario(num_nodes=3, flags=("--lease", "2s", "--fence", "6s"))
def flicker_and_vanish(site, job):
    """Of ctest: a link that is down for less than the fence period, and a host that is gone."""
    job.wait_for_step(5)
    site.fabric.link(site.hosts["n2"], "down")
    site.wait_for_nodes("LOST", "n2")
    site.fabric.mend()
    site.wait_for_nodes("READY", "n2")
    step = max(e["step"]["step"] for e in job.seen("step"))
    job.wait_for_step(step + 3)
    site.hosts["n2"].power_off()
    give_up_n2(site, job)
    return 2


@scenario(flags=("--lease", "2s", "--fence", "60s"))
def coordinator_vanishes(site, job):
    """Agents find out by their pings, ranks do not notice, and another host comes back."""
    job.wait_for_step(5)
    site.hosts["c"].power_off()
    site.coordinator.process.wait()
    wait_until(
        lambda: all(site.log_says(node, "no coordinator at") for node in ("n1", "n2")),
        "agents to notice",
    )
    site.boot("c")
    site.coordinator.start(site.hosts["c"].enter)
    site.wait_for_nodes("READY", "n1", "n2")
    return 1


@scenario()
def lossy(site, _job):
    """Links that lose 2 frames in 100 of each way."""
    names = list(site.hosts)
    site.fabric.drop(*((a, b) for a in names for b in names if a != b), percent=2)
    return 1


# How far a client may be, one way: half of it more by chance, as much back, and four ways until TLS
# has begun.
FAR_MS = 200
ASK = """
import sys, pathlib, tessera
address, ca, token = sys.argv[1:]
token = pathlib.Path(token).read_text().strip()
with tessera.Client(address, ca_file=ca, token=token, patience=20) as client:
    print(len(client.list()))
"""


@scenario(rate=FAST, delay_ms=10)
def far_away(site, job):
    """Agents 10 to 15 ms away, with frames that overtake each other, and clients further off."""
    job.wait_for_step(5)
    token = site.coordinator.token("viewer", "--role", "viewer")
    viewer = site.boot("viewer", number=99, delay_ms=FAR_MS)
    flags = site.coordinator.remote_flags(token)
    run(*viewer.enter, *site.service.command(*flags, "list"))
    package = build_package(site.service.directory)
    python = (*viewer.enter, "env", f"PYTHONPATH={package}", sys.executable, "-c", ASK)
    listed = run(*python, site.coordinator.address, site.coordinator.ca, token)
    expect(listed.strip() == "1", listed)
    return 1


def split_peers(site, job, **how):
    """n1 and n2 do not reach each other, and both reach the coordinator: the run hangs, and is
    ended as hung, for as long as that is so."""
    job.wait_for_step(5)
    site.fabric.drop(("n1", "n2"), ("n2", "n1"), **how)
    job.wait_for_state("RESTARTING")
    site.fabric.mend()


@scenario(resources={"hang_timeout": "5s"})
def peers_cut(site, job):
    split_peers(site, job)


@scenario(resources={"hang_timeout": "5s"})
def large_frames_lost(site, job):
    """As where a tunnel takes less than the links and nobody says so: greetings pass, weights do
    not."""
    split_peers(site, job, longer_than=1000)


@scenario(flags=("--lease", "2s", "--fence", "60s"))
def half_open(site, job):
    """Who only listens, from another machine, and to a job that waits and has nothing to say, finds
    out that the coordinator's host is gone, and goes on where there is one again."""
    token = site.coordinator.token("viewer", "--role", "viewer")
    job.wait_for_step(5)
    waiting = job.submit_another("waiting")
    viewer = site.boot("viewer", number=99)
    log = site.service.directory / "viewer.out"
    flags = site.coordinator.remote_flags(token)
    process = viewer.start(site.service.command("--json", *flags, "watch", waiting), log)
    wait_until(lambda: '"QUEUED"' in log.read_text(), "the viewer to see the job wait")
    job.wait_for_step(max(event["step"]["step"] for event in job.seen("step")) + 5)  # silence
    site.hosts["c"].power_off()
    site.coordinator.process.wait()
    site.boot("c")
    site.coordinator.start(site.hosts["c"].enter)
    site.fabric.slow(FAST)
    wait_until(lambda: process.poll() is not None, "the viewer to see the end")
    expect(process.returncode == 0 and '"SUCCEEDED"' in log.read_text(), log.read_text()[-2000:])
    return 1


@scenario(num_nodes=6, size=Size(4), flags=("--lease", "2s", "--fence", "6s"), rate="4mbit")
def storm(site, job):
    """For two minutes one thing after another, by chance (the same each time)."""
    chance = random.Random(1)
    nodes = [name for name in site.hosts if name != "c"]
    until = time.monotonic() + 120
    while time.monotonic() < until and not job.is_over():
        host = site.hosts[chance.choice(nodes)]
        what = chance.choice(["link", "mute", "deaf", "isolate", "power"])
        if what == "link":
            site.fabric.link(host, "down")
        elif what == "isolate":
            site.fabric.isolate(host)
        elif what == "power":
            host.power_off()
        else:
            site.fabric.drop((host.name, "c") if what == "mute" else ("c", host.name))
        end = time.monotonic() + chance.uniform(0.5, 15)
        wait_until(lambda end=end: time.monotonic() > end or job.is_over(), "the next moment")
        if what == "power":
            site.boot(host.name)
            site.start_agent(host.name)
        site.fabric.mend()
    site.wait_for_nodes("READY", *nodes)
