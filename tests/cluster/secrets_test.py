#!/usr/bin/env python3
"""Secrets are planted in all that goes into a service, and looked for in all that comes out of it.

secrets_test.py --bin DIR --assets DIR

Each plant is a word that may be seen beside a secret that may not. The word shows that the text
came where the secret was taken out.
"""

import argparse
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import urllib.error
import urllib.request

from cluster import Cluster, Follower, cluster, expect, wait_until
from jobs import sft_job
from remote import Coordinator

STEPS = 40
RECORDS = 3000  # more than a check looks at
SCHEME = "https:" + "//"
ENVIRONMENT = {
    "HF_TOKEN": "hf_" + "Aq7" * 12,
    "AWS_SECRET_ACCESS_KEY": "wJalr/planted+key",
    "PGPASSWORD": "planted-password",
    "CLUSTER_API_KEY": "planted-api-key-71",
}
# In a text, after the word that may be seen.
TEXTS = {
    "huggingface": "hf_" + "Zk4" * 12,
    "bearer": "Bearer planted.bearer-0123456789",
    "basic": "Basic cGxhbnRlZDpiYXNpYzAx",
    "url": f"{SCHEME}planted-user:planted-pass@localhost/x",
    "query": f"{SCHEME}localhost/x?access_token=planted-query-01&page=2",
    "assigned": "S3_SECRET=planted-assigned-02",
    "token": "tsr_0123456789ab_" + "5e" * 32,
    "key": "-----BEGIN PRIVATE KEY-----planted/key/body+03-----END PRIVATE KEY-----",
}
# The part of each that must not be seen.
HIDDEN = {
    "huggingface": "Zk4" * 12,
    "bearer": "planted.bearer",
    "basic": "cGxhbnRlZDpiYXNpYzAx",
    "url": "planted-pass",
    "query": "planted-query",
    "assigned": "planted-assigned",
    "token": "5e" * 32,
    "key": "planted/key/body",
}


def planted(where):
    """A text with every secret in it, each after a word of its own."""
    return " ".join(f"seen-{where}-{name} {text}," for name, text in TEXTS.items())


class Recorder(Cluster):
    """A service whose command line's output is kept."""

    said = ""

    def call(self, *arguments):
        done = super().call(*arguments)
        self.said += done.stdout + done.stderr
        return done


class Searched:
    """What must not be seen anywhere, and what was looked at."""

    def __init__(self, service):
        self.service = service
        self.hidden = {f"text {name}": value for name, value in HIDDEN.items()}
        self.hidden |= {f"environment {name}": value for name, value in ENVIRONMENT.items()}
        self.seen = set()

    def look(self, place, text):
        data = text.encode() if isinstance(text, str) else text
        for name, value in self.hidden.items():
            expect(value.encode() not in data, f"{place} holds the secret of {name}")
        for word in (b"seen-refused-", b"seen-failed-", b"seen-path-", b"seen-authorization-"):
            if word in data:
                self.seen.add((place.split(" ")[0], word.decode()))

    def look_at_files(self, inputs):
        """All that was written, but for what holds secrets by its nature."""
        for path in sorted(self.service.directory.rglob("*")):
            name = path.relative_to(self.service.directory)
            own = path.name.endswith("key.pem") or path.suffix == ".token"
            # What a rank writes is its own; it goes further only through the agent.
            of_ranks = {"runs", "probes"} & set(name.parts)
            if path.is_file() and not own and not of_ranks and not path.is_relative_to(inputs):
                self.look(f"file {name}", path.read_bytes())

    def look_at_processes(self, running):
        """Command lines of all, and the environment of those that run for jobs."""
        for pid in self.service.pids():
            self.look(f"command line of {pid}", pathlib.Path(f"/proc/{pid}/cmdline").read_bytes())
        for pid in running:
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            expect(b"PATH=" in environment, f"the environment of {pid} cannot be read")
            self.look(f"environment of {pid}", environment)


def write_inputs(options, service):
    """A tokenizer whose template raises what a record says."""
    inputs = service.directory / "inputs"
    shutil.copytree(options.assets / "tokenizer", inputs / "tokenizer")
    template = "{% for m in messages %}{% if m.content.startswith('raise') %}"
    template += (
        "{{ raise_exception(m.content) }}{% endif %}{{ m.content }}{% endfor %}{{ eos_token }}"
    )
    (inputs / "template.jinja").write_text(template)
    return inputs


def chat_job(options, service, inputs, name, raising_at):
    """A job of which one record makes the template raise its text."""
    data = inputs / f"{name}.jsonl"
    with data.open("w") as file:
        for i in range(RECORDS):
            content = f"raise {planted(name)}" if i == raising_at else f"row {i}"
            file.write(json.dumps({"messages": [{"role": "user", "content": content}]}) + "\n")
    job = sft_job(options.assets, service.directory / "out" / name, 1, max_steps=STEPS)
    job["method"]["sft"] |= {"chat_template_path": str(inputs / "template.jinja"), "max_length": 64}
    job["data"]["train"] = str(data)
    job["resources"] = {"max_restarts": 0}
    path = inputs / f"{name}.json"
    path.write_text(json.dumps(job | {"name": name, "project": "team"}))
    return path


def refuse_jobs(coordinator, submitter, inputs, options, service):
    """Jobs that are refused, by what their files and fields say."""
    path = chat_job(options, service, inputs, "refused", 0)
    done = coordinator.remote(submitter, "submit", str(path))
    expect(done.returncode == 2 and "seen-refused-url" in done.stderr, done.stderr)
    good = json.loads(path.read_text())
    for name, text in TEXTS.items():
        value = f"seen-path-{name} {text}"
        for field, change in (
            ("model.path", {"model": {"path": value}}),
            (
                "training.lr_scheduler_type",
                {"training": good["training"] | {"lr_scheduler_type": value}},
            ),
            ("name", {"name": value}),
        ):
            path = inputs / "changed.json"
            path.write_text(json.dumps(good | change))
            done = coordinator.remote(submitter, "submit", str(path))
            expect(done.returncode == 2, f"{field} is {value!r}: {done.stdout}{done.stderr}")


def fail_job(coordinator, submitter, inputs, options, service, searched):
    """A job that is taken, runs, and fails by what a record far down says."""
    path = chat_job(options, service, inputs, "failed", RECORDS - 1)
    done = coordinator.remote(submitter, "submit", str(path))
    expect(done.returncode == 0, done.stderr)
    job = done.stdout.strip()
    running = wait_until(
        lambda: service.pids("tessera-trainer") or not_running(coordinator, submitter, job),
        "a rank to run",
    )
    if isinstance(running, list):
        searched.look_at_processes(running)
    follower = Follower(service, *coordinator.remote_flags(submitter), "watch", job)
    follower.follow(lambda event: None)
    follower.end()
    searched.look("watch", json.dumps(follower.events))
    last = follower.events[-1]["state"]
    expect(last["state"] == "FAILED" and "seen-failed-url" in json.dumps(last), str(last))
    for command in ("get", "logs", "list"):
        arguments = () if command == "list" else (job,)
        searched.look(command, coordinator.remote(submitter, "--json", command, *arguments).stdout)
    return job


def not_running(coordinator, submitter, job):
    done = coordinator.remote(submitter, "--json", "get", job)
    return json.loads(done.stdout)["state"] == "FAILED"


def ask_http(coordinator, path, headers=()):
    port = (coordinator.state / "http.port").read_text().strip()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def look_at_http(coordinator, job, searched):
    paths = ["/metrics", "/api/v1/jobs", "/api/v1/nodes", f"/api/v1/sparklines?ids={job}"]
    paths += [f"/api/v1/jobs/{job}{part}" for part in ("/history", "/events")]
    for path in paths:
        status, body = ask_http(coordinator, path)
        expect(status == 200, f"{path}: {status} {body}")
        searched.look(f"http {path}", body)
    for name, text in TEXTS.items():
        headers = {"Authorization": f"seen-authorization-{name} {text}"}
        status, body = ask_http(coordinator, "/api/v1/jobs", headers)
        expect(status == 401, f"{name}: {status} {body}")
        searched.look("http with a credential", body)


def refuse_callers(coordinator, service, searched):
    """Credentials that do not hold, on the wire."""
    for number, text in enumerate(TEXTS.values()):
        path = service.directory / f"bad-{number}.token"
        path.write_text(text + "\n")
        done = coordinator.remote(path, "list")
        expect(done.returncode != 0, f"{text!r} let somebody in")
        searched.look("refused caller", done.stdout + done.stderr)


def check_cores(service, coordinator, agent_command, searched):
    """Neither program leaves its memory behind when it is killed for a fault."""
    place = service.directory / "cores"
    place.mkdir()
    control = subprocess.Popen(["sh", "-c", "kill -ABRT $$"], cwd=place)
    if not os.WCOREDUMP(os.waitpid(control.pid, 0)[1]):
        print("SKIPPED, NOT TESTED: this machine makes no core dumps", flush=True)
        return
    for core in place.glob("*core*"):
        core.unlink()
    for program, command, ready in (
        (
            "tesserad",
            [str(service.binaries / "tesserad"), "--state-dir", str(place / "state"), "--http", ""],
            lambda: (place / "state" / "tesserad.sock").exists(),
        ),
        ("tessera-agent", agent_command, lambda: (place / "agent" / "agent.lock").exists()),
    ):
        process = subprocess.Popen(command, cwd=place, stderr=subprocess.DEVNULL)
        wait_until(ready, f"{program} to run")
        environment = pathlib.Path(f"/proc/{process.pid}/environ")
        expect(environment.stat().st_uid == 0, "it is not root's")
        process.send_signal(signal.SIGABRT)
        status = os.waitpid(process.pid, 0)[1]
        expect(os.WIFSIGNALED(status), f"{program} ended with {status}")
        expect(not os.WCOREDUMP(status), f"{program} left a core dump")


def run(options, service):
    inputs = write_inputs(options, service)
    searched = Searched(service)
    coordinator = Coordinator(service, http="127.0.0.1:0")
    submitter = coordinator.token("submitter", "--role", "submitter")
    enrol = coordinator.token("agent", "--role", "agent")
    for path in (submitter, enrol):
        searched.hidden[path.name] = path.read_text().strip().rpartition("_")[2]
    with coordinator.agent("n1", "--enrol-token-file", str(enrol)):
        refuse_jobs(coordinator, submitter, inputs, options, service)
        job = fail_job(coordinator, submitter, inputs, options, service, searched)
        look_at_http(coordinator, job, searched)
        refuse_callers(coordinator, service, searched)
        searched.look_at_processes([])
    coordinator.stop()
    check_cores(
        service,
        coordinator,
        [
            str(service.binaries / "tessera-agent"),
            *("--coordinator", f"unix:{service.directory}/cores/state/tesserad.sock"),
            *("--state-dir", str(service.directory / "cores" / "agent")),
        ],
        searched,
    )
    searched.look("cli", service.said)
    searched.look_at_files(inputs)
    for place, word in (
        ("cli", "seen-refused-"),
        ("cli", "seen-path-"),
        ("file", "seen-failed-"),
        ("watch", "seen-failed-"),
        ("get", "seen-failed-"),
        ("http", "seen-failed-"),
    ):
        expect((place, word) in searched.seen, f"{word} never came to {place}: {searched.seen}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with cluster(options.bin, Recorder) as service:
        run(options, service)
    print("ok: no secret is anywhere but where it was put", flush=True)


if __name__ == "__main__":
    main()
