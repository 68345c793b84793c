#!/usr/bin/env python3
"""Several coordinators on one PostgreSQL server, all real: one leads, and every way to lose it.

coordinators_test.py --bin DIR --assets DIR [--rounds N]

In most scenarios a job of two ranks runs, clients follow its events by the command line and from
Python, and others submit jobs one after the other, from the beginning to the end of what goes
wrong. What was acknowledged is there afterwards, once; the job has gone on without a restart, and
no event of it is lost or seen twice.
"""

import argparse
import contextlib
import importlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import uuid

# Processes are started while calls are under way: gRPC is not to look after them.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc
from cluster import DEADLINE_SECONDS, Follower, cluster, expect, wait_until
from coordinators import PASSWORD, Coordinator, PythonWatch
from jobs import sft_job

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from postgres import postgres
from reward_server import build_package

STEPS = 60
LONG_STEPS = 600


def ask(address, name, request, seconds=30):
    """A call of the Coordinator service, at this address and no other."""
    method = getattr(tessera.requests, name)
    with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        call = channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return call(request, timeout=seconds)


class Load:
    """Changes made one after the other, until it is stopped; it knows those that were acknowledged.

    Submits, which an agent's machine has to check, one by one; and a project's bound, which counts
    up as fast as it is committed.
    """

    def __init__(self, options, service, address):
        job = sft_job(options.assets, service.directory / "load")
        self._job = job | {"name": "load", "resources": {"device": "cpu", "priority": -10}}
        self._client = tessera.Client(address, patience=DEADLINE_SECONDS)
        self.acknowledged = {}  # ids by request id
        self.bound = 0
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._submit, self._count)]
        for thread in self._threads:
            thread.start()

    def _submit(self):
        while not self._stopping.is_set():
            request = uuid.uuid4().hex
            job = self._client.submit(self._job, request_id=request)
            self.acknowledged[request] = job.id
            self._client.cancel(job.id)

    def _count(self):
        # The other changes want to be made, too.
        while not self._stopping.wait(0.01):
            project = coordinator_pb2.Project(name="load", max_queued=self.bound + 1)
            request = coordinator_pb2.SetProjectRequest(project=project)
            answer = self._client._call(SET_PROJECT, request)
            self.bound = answer.project.max_queued

    def await_more(self, count):
        want = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= want, f"{count} more jobs to be acknowledged")

    def stop(self):
        self._stopping.set()
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)
            expect(not thread.is_alive(), "a call did not return")
        self._client.close()


class Scene:
    def __init__(self, options, service, database):
        self.options, self.service, self.database = options, service, database
        self.coordinators = [Coordinator(service, database, name) for name in ("a", "b")]
        self.address = ",".join(c.address for c in self.coordinators)
        self.num_works = 0

    def leader(self):
        """The one that leads, once there is one and no other does."""
        return wait_until(
            lambda: next((c for c in self.coordinators if c.leads()), None), "a leader"
        )

    def other(self, coordinator):
        (other,) = [c for c in self.coordinators if c is not coordinator]
        return other

    def epoch(self):
        return int(self.database.sql("SELECT epoch FROM leader", "tessera"))

    def call(self, *arguments):
        return self.service.call("--address", self.address, *arguments)

    def start_agent(self):
        self.agent_log = self.service.directory / "agent.log"
        command = [
            str(self.service.binaries / "tessera-agent"),
            *("--coordinator", self.address, "--node", "n1", "--cpu-slots", "2"),
            *("--state-dir", str(self.service.directory / "agent"), "--kill-on-exit"),
        ]
        with self.agent_log.open("ab") as log:
            self.agent = subprocess.Popen(command, stderr=log)

    def check_load(self, load):
        """Each acknowledged job is there, once, as the job of its request."""
        with tessera.Client(self.address) as client:
            known = [job.id for job in client.list(limit=100_000)]
            expect(len(known) == len(set(known)), "a job is listed twice")
            for request, job in load.acknowledged.items():
                expect(job in known, f"job {job} of request {request} was lost")
            # None was made by an attempt that nobody was told of, beside the one that was.
            projects = client._call(LIST_PROJECTS, coordinator_pb2.ListProjectsRequest()).projects
            (bound,) = [project.max_queued for project in projects if project.name == "load"]
            expect(bound == load.bound > 20, f"{load.bound} was set last, and {bound} is there")
            rows = self.database.sql("SELECT count(*), count(DISTINCT request_id) FROM jobs",
                                     "tessera").split("|")  # fmt: skip
            expect(rows[0] == rows[1] == str(len(known)), f"{rows} jobs, {len(known)} listed")

    @contextlib.contextmanager
    def work(self, name, steps=STEPS):
        """A job that runs, who follows it, and submits, from before to after the block."""
        self.num_works += 1
        name = f"{name}-{self.num_works}"
        output = self.service.directory / name
        job = sft_job(self.options.assets, output, ranks=2, max_steps=steps, save_steps=20)
        path = self.service.write_job(name, job | {"name": name})
        submitted = self.call("submit", str(path))
        expect(submitted.returncode == 0, submitted.stderr)
        number = submitted.stdout.strip()
        load = Load(self.options, self.service, self.address)
        follower = Follower(self.service, "--address", self.address, "watch", number)
        by_python = PythonWatch(tessera, self.address, number)
        begun = threading.Event()

        def on_event(event):
            if event.get("step", {}).get("step", 0) >= 3:
                begun.set()

        thread = threading.Thread(target=follower.follow, args=(on_event,))
        thread.start()
        try:
            expect(begun.wait(DEADLINE_SECONDS), f"{name} made no step")
            load.await_more(1)
            yield load
            load.await_more(1)
        finally:
            load.stop()
            thread.join(DEADLINE_SECONDS)
        code, errors = follower.end()
        expect(code == 0, f"{name} ended with {code}: {errors}")
        self.check_events(name, follower.events, steps)
        revisions = [int(event["revision"]) for event in follower.events]
        expect(by_python.join() == revisions, f"{name}: Python saw {by_python.revisions}")
        self.check_load(load)

    def check_events(self, name, events, num_steps):
        revisions = [int(event["revision"]) for event in events]
        expect(
            all(a < b for a, b in itertools.pairwise(revisions)),
            f"{name}: revisions do not grow: {revisions}",
        )
        steps = [event["step"]["step"] for event in events if "step" in event]
        expect(steps == [*range(1, num_steps + 1)], f"{name}: steps {steps}")
        last = events[-1]
        expect(last["state"]["state"] == "SUCCEEDED" and last["attempt"] == 1, f"{name}: {last}")

    def stop(self):
        self.agent.send_signal(signal.SIGTERM)
        expect(self.agent.wait(DEADLINE_SECONDS) == 0, self.agent_log.read_text())
        for coordinator in self.coordinators:
            coordinator.stop()


def test_standby(scene):
    """It says that it stands by, and for whom; to people, to programs, and to load balancers."""
    leader = scene.leader()
    standby = scene.other(leader)
    wait_until(standby.stands_by, "the other to stand by")
    expect(standby.get("/healthz") == (200, "ok\n"), "a standby is not healthy")
    code, page = standby.get("/api/jobs")
    expect(code == 503 and json.loads(page)["error"]["reason"] == "STANDBY", page)
    done = scene.service.call("--address", standby.address, "list")
    expect(done.returncode == 4 and f"the leader is at {leader.address}" in done.stderr,
           done.stderr)  # fmt: skip
    expect(scene.call("list").returncode == 0, "the leader was not found")
    for coordinator, serving in ((leader, 1), (standby, 2)):
        with grpc.insecure_channel(coordinator.address) as channel:
            answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=30)
        expect(answer == bytes([8, serving]), f"health of {coordinator.name}: {answer}")


def test_kill(scene):
    """kill -9 of the leader: the other takes over; started again, it stands by."""
    leader = scene.leader()
    epoch = scene.epoch()
    with scene.work("killed") as load:
        leader.kill()
        wait_until(scene.other(leader).leads, "the standby to lead")
        expect(scene.epoch() == epoch + 1, f"epoch {scene.epoch()} after {epoch}")
        load.await_more(2)
        leader.start()
        wait_until(leader.stands_by, "the killed one to stand by")


def test_long_job(scene):
    """One job through the deaths of three leaders, one after the other."""
    with scene.work("long", LONG_STEPS) as load:
        for _ in range(3):
            leader = scene.leader()
            leader.kill()
            wait_until(scene.other(leader).leads, "the standby to lead")
            load.await_more(1)
            leader.start()
            wait_until(leader.stands_by, "the killed one to stand by")


def requests_in_flight(scene):
    """A call of each kind: what it is called, and its request."""
    job = sft_job(scene.options.assets, scene.service.directory / "late") | {"name": "late"}
    return {
        "SUBMIT": tessera.requests.submit_request(job, "late", False),
        "GET": coordinator_pb2.GetJobRequest(id="none"),
        "LIST": coordinator_pb2.ListJobsRequest(),
        "CANCEL": coordinator_pb2.CancelJobRequest(id="none"),
        "NODES": coordinator_pb2.ListNodesRequest(),
    }


def test_wake(scene):
    """A leader that was stopped past its lease wakes with calls in its sockets: it answers none of
    them, and who made them hears so before it would give up by itself."""
    leader = scene.leader()
    wait_until(scene.other(leader).stands_by, "the other to stand by")
    leader.process.send_signal(signal.SIGSTOP)
    wait_until(scene.other(leader).leads, "the standby to lead")
    answers = {}

    def call(name, request):
        try:
            answers[name] = ask(leader.address, name, request, seconds=DEADLINE_SECONDS)
        except grpc.RpcError as error:
            answers[name] = error.code()

    calls = [threading.Thread(target=call, args=each) for each in requests_in_flight(scene).items()]
    for thread in calls:
        thread.start()
    leader.process.send_signal(signal.SIGCONT)
    for thread in calls:
        thread.join(2 * DEADLINE_SECONDS)
    unavailable = grpc.StatusCode.UNAVAILABLE
    # What only reads may have been answered before it knew: all of that was so once.
    for name in ("SUBMIT", "CANCEL", "NODES"):
        expect(answers.get(name) == unavailable, f"{name}: {answers}")
    expect(grpc.StatusCode.DEADLINE_EXCEEDED not in answers.values(), f"{answers}")
    wait_until(leader.stands_by, "the stopped one to stand by")


def test_owner(scene):
    """What a cluster's jobs are named by is the database's, for all coordinators."""
    leader = scene.leader()
    (standby,) = [c for c in scene.coordinators if c is not leader]
    owner = scene.database.sql(
        "SELECT convert_from(value, 'UTF8') FROM settings WHERE name = 'launcher.owner'", "tessera"
    )
    standby.stop()
    command = standby.command
    standby.command = [*command, "--launcher-owner", "another"]
    standby.start()
    expect(standby.process.wait(DEADLINE_SECONDS) == 1, "one of another owner has started")
    said = standby.log.read_text()
    for word in ("--launcher-owner", '"another"', f'"{owner}"'):
        expect(word in said, f"{word} is not in {said[-1000:]}")
    standby.command = [*command, "--launcher-owner", owner]
    standby.start()
    wait_until(standby.stands_by, "one of the same owner to stand by")
    standby.stop()
    standby.command = command
    standby.start()
    wait_until(standby.stands_by, "it to stand by again")


def test_stop(scene):
    """A leader that is stopped past its lease, and goes on: it commits nothing, and steps down."""
    leader = scene.leader()
    with scene.work("stopped") as load:
        leader.process.send_signal(signal.SIGSTOP)
        wait_until(scene.other(leader).leads, "the standby to lead")
        load.await_more(2)
        # It waits in the socket of the one that is stopped.
        job = sft_job(scene.options.assets, scene.service.directory / "late") | {"name": "late"}
        request = tessera.requests.submit_request(job, "late", False)
        failures = []

        def submit():
            try:
                failures.append(ask(leader.address, "SUBMIT", request))
            except grpc.RpcError as error:
                failures.append(error.code())

        late = threading.Thread(target=submit)
        late.start()
        leader.process.send_signal(signal.SIGCONT)
        late.join(DEADLINE_SECONDS)
        expect(failures == [grpc.StatusCode.UNAVAILABLE], f"a late submit: {failures}")
        wait_until(leader.stands_by, "the stopped one to stand by")
        expect(leader.process.poll() is None, "the stopped one has ended")
        expect("stepping down" in leader.log.read_text(), leader.log.read_text())
        rows = scene.database.sql("SELECT count(*) FROM jobs WHERE request_id = 'late'", "tessera")
        expect(rows == "0", "a leader that was deposed has committed a job")


def test_database_dies(scene):
    """kill -9 of the database server, and its recovery."""
    with scene.work("database"):
        scene.database.kill()
        scene.database.start()
        scene.leader()


def test_database_restarts(scene):
    """The database's operator restarts it, at once (pg_ctl restart -m immediate), three times."""
    with scene.work("restarts") as load:
        for _ in range(3):
            scene.database.restart()
            load.await_more(2)
        scene.leader()


def test_connections_die(scene):
    """All connections of the coordinators are ended, twice."""
    with scene.work("connections") as load:
        for _ in range(2):
            scene.database.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tessera'"
            )
            load.await_more(2)


def test_handover(scene):
    """A leader that is asked to stop gives its lease back: nobody waits for it to run out."""
    leader = scene.leader()
    with scene.work("handover"):
        leader.stop()
        left = scene.database.sql("SELECT expires > clock_timestamp() FROM leader WHERE address = "
                                  f"'{leader.address}'", "tessera")  # fmt: skip
        expect(left != "t", "the lease was not given back")
        wait_until(scene.other(leader).leads, "the standby to lead")
        leader.start()


def test_authority(scene):
    """Over TLS: all show certificates of one authority, take the same tokens, and agents move."""
    service, database = scene.service, scene.database
    database.add_user("tls", PASSWORD)
    flags = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    first = Coordinator(service, database, "tls-a", *flags, user="tls")
    wait_until(first.leads, "the first to lead")
    second = Coordinator(service, database, "tls-b", *flags, user="tls")
    expect(second.process.wait(DEADLINE_SECONDS) == 1, "one without the authority has started")
    expect("not the authority of the other coordinators" in second.log.read_text(),
           second.log.read_text())  # fmt: skip
    (second.state / "tls").mkdir(mode=0o700)
    for name in ("ca.pem", "ca-key.pem"):
        shutil.copy(first.state / "tls" / name, second.state / "tls" / name)
    second.start()
    wait_until(second.stands_by, "the second to stand by")
    ports = [(c.state / "grpc.port").read_text().strip() for c in (first, second)]
    address = ",".join(f"127.0.0.1:{port}" for port in ports)
    tokens = {}
    for role in ("agent", "viewer"):
        made = service.call("--address", first.address, "token", "create", "--role", role)
        expect(made.returncode == 0, made.stderr)
        tokens[role] = service.directory / f"{role}.token"
        tokens[role].write_text(made.stdout)
    authority = ("--ca", str(first.state / "tls/ca.pem"))
    log = service.directory / "tls-agent.log"
    command = [
        str(service.binaries / "tessera-agent"),
        *("--coordinator", address, "--node", "t1", "--cpu-slots", "1", *authority),
        *("--state-dir", str(service.directory / "tls-agent")),
        *("--enrol-token-file", str(tokens["agent"])),
    ]
    with log.open("ab") as stderr, subprocess.Popen(command, stderr=stderr) as agent:
        for coordinator, port in zip((first, second), ports, strict=True):
            text = f"connected to 127.0.0.1:{port} as t1"
            wait_until(lambda: text in log.read_text(), f"the agent to be {text}")  # noqa: B023
            flags = ("--address", address, *authority, "--token-file", str(tokens["viewer"]))
            listed = service.call(*flags, "nodes")
            expect(listed.returncode == 0 and "t1" in listed.stdout, listed.stderr)
            coordinator.kill()
        agent.kill()


def check_secrets(scene):
    """The password is in its file, and nowhere else: not in logs, and in no list of processes."""
    for path in scene.service.directory.rglob("*"):
        if path.is_file() and path != scene.coordinators[0].password:
            expect(PASSWORD.encode() not in path.read_bytes(), f"{path} holds the password")
    for coordinator in scene.coordinators:
        words = pathlib.Path(f"/proc/{coordinator.process.pid}/cmdline").read_bytes()
        expect(PASSWORD.encode() not in words, "the password is in the command line")


SCENARIOS = (
    test_standby,
    test_wake,
    test_kill,
    test_long_job,
    test_stop,
    test_owner,
    test_database_dies,
    test_database_restarts,
    test_connections_die,
    test_handover,
    test_authority,
)
QUICK = (test_standby, test_wake, test_owner, test_kill)
# Makes a database of its own.
ONCE = (test_authority,)


def import_client(service):
    global tessera, coordinator_pb2, SET_PROJECT, LIST_PROJECTS
    sys.path.insert(0, str(build_package(service.directory)))
    tessera = importlib.import_module("tessera")
    requests = importlib.import_module("tessera.requests")
    coordinator_pb2 = importlib.import_module("tessera.v1.coordinator_pb2")
    SET_PROJECT, LIST_PROJECTS = (
        requests.Method(
            f"/tessera.v1.Coordinator/{name}",
            getattr(coordinator_pb2, f"{name}Request"),
            getattr(coordinator_pb2, f"{name}Response"),
        )
        for name in ("SetProject", "ListProjects")
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--rounds", type=int, help="all scenarios, so often; else a few, once")
    options = parser.parse_args()
    with cluster(options.bin) as service, postgres() as database:
        import_client(service)
        database.add_user("tessera", PASSWORD)
        scene = Scene(options, service, database)
        scene.start_agent()
        for number in range(options.rounds or 1):
            for test in SCENARIOS if options.rounds else QUICK:
                if number > 0 and test in ONCE:
                    continue
                test(scene)
                print(f"ok: {test.__name__.removeprefix('test_')}", flush=True)
        check_secrets(scene)
        scene.stop()
        print("ok: no secret is shown", flush=True)


if __name__ == "__main__":
    main()
