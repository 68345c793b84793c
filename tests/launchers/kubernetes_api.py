"""As much of a Kubernetes API server as Jobs need, over real HTTPS; its pods are processes.

Jobs, Secrets and Pods are kept as the API has them; each object that comes in is validated by
Kubernetes' own schemas. A pod of a Job is a process: the container's arguments, with $(VARIABLES)
and mounts put in, are given to the tessera-agent of this build. Its end becomes the pod's status,
and the pods' ends the Job's, as with backoffLimit 0. Answers can be lost on the way: the call is
made, and the connection closed.
"""

import contextlib
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import threading
import urllib.parse
import uuid

import kubernetes_validate

VERSIONS = ("1.29", ".".join(kubernetes_validate.latest_version().split(".")[:2]))
PATH = re.compile(r"^/(?:api/v1|apis/batch/v1)/namespaces/([^/]+)/([a-z]+)(?:/([^/]+))?$")
# Resource -> the API group it is served under.
GROUPS = {"jobs": "/apis/batch/v1/", "secrets": "/api/v1/", "pods": "/api/v1/"}
TOKEN = "a-token-of-a-service-account"


def make_certificate(directory):
    """(certificate, key): an authority and server in one."""
    certificate, key = directory / "api.pem", directory / "api-key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "1", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key)),
            *("-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


class Pod:
    """A pod that was scheduled: its object, its process, and its files."""

    def __init__(self, api, job, index):
        name = f"{job['metadata']['name']}-{index}"
        template = json.loads(json.dumps(job["spec"]["template"]))
        labels = template["metadata"].get("labels", {}) | {
            "job-name": job["metadata"]["name"],
            "batch.kubernetes.io/job-name": job["metadata"]["name"],
            "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
        }
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        self.object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        self.files = api.directory / "pods" / f"{name}-{uuid.uuid4().hex[:6]}"
        self.process = None

    def start(self, binaries, secrets):
        self.files.mkdir(parents=True)
        (container,) = self.object["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in self.object["spec"]["volumes"]}
        places = {}
        for mount in container["volumeMounts"]:
            place = self.files / mount["name"]
            place.mkdir()
            secret = volumes[mount["name"]].get("secret")
            if secret:
                for key, text in secrets[secret["secretName"]]["stringData"].items():
                    (place / key).write_text(text)
            places[mount["mountPath"]] = place
        variables = {entry["name"]: self.variable(entry) for entry in container["env"]}
        command = [str(binaries / "tessera-agent")]
        for argument in container["args"]:
            argument = re.sub(r"\$\((\w+)\)", lambda m: variables[m.group(1)], argument)
            for path, place in places.items():
                argument = argument.replace(f"={path}", f"={place}")
            command.append(argument)
        with (self.files / "agent.log").open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, start_new_session=True)
        self.object["spec"]["nodeName"] = "machine"
        self.object["status"] = {
            "phase": "Running",
            "containerStatuses": [{"name": container["name"], "state": {"running": {}}}],
        }

    def variable(self, entry):
        path = entry["valueFrom"]["fieldRef"]["fieldPath"]
        if path == "status.podIP":
            return "127.0.0.1"
        kind, key = re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path).groups()
        return self.object["metadata"][kind][key]

    def poll(self):
        """Whether it has just ended."""
        if self.process is None or self.process.poll() is None:
            return False
        if self.object["status"]["phase"] in ("Succeeded", "Failed"):
            return False
        code = self.process.returncode
        code = code if code >= 0 else 128 - code
        (status,) = self.object["status"]["containerStatuses"]
        reason = "Completed" if code == 0 else "Error"
        status["state"] = {"terminated": {"exitCode": code, "reason": reason}}
        self.object["status"]["phase"] = "Failed" if code else "Succeeded"
        self.end_processes()
        return True

    def end_processes(self):
        """A container's processes end with its first one. Theirs have its files in their words."""
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(self.files).encode() in entry.read_bytes():
                    os.kill(int(entry.parent.name), signal.SIGKILL)

    def signal(self, number):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def is_over(self):
        return self.process is None or self.process.poll() is not None


class Api:
    def __init__(self, directory, binaries, machines=4):
        self.directory = pathlib.Path(directory)
        self.binaries = pathlib.Path(binaries)
        # Pods that run at a time; a Job waits until all of its pods may.
        self.machines = machines
        self.lock = threading.RLock()
        self.objects = {"jobs": {}, "secrets": {}}
        self.pods = {}  # by the Job's name
        self.created = []  # names of Jobs, ever
        self.calls = []  # (method, resource, code)
        self.faults = []  # (method, resource, fault), each used once
        self.stopping = threading.Event()

    def __enter__(self):
        self.directory.mkdir(parents=True, exist_ok=True)
        self.certificate, key = make_certificate(self.directory)
        (self.directory / "token").write_text(TOKEN)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(self.certificate, key)
        self.port = 0
        self.listen()
        self.controller = threading.Thread(target=self.control)
        self.controller.start()
        return self

    def listen(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.socket = self.context.wrap_socket(self.server.socket, server_side=True)
        self.server.daemon_threads = True
        self.server.api = self
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def go_away(self):
        self.server.shutdown()
        self.server.server_close()

    def __exit__(self, *_):
        self.stopping.set()
        self.controller.join()
        self.go_away()
        for pods in self.pods.values():
            for pod in pods:
                pod.signal(signal.SIGKILL)
                if pod.process is not None:
                    pod.process.wait()
                pod.end_processes()
        shutil.rmtree(self.directory / "pods", ignore_errors=True)

    def flags(self):
        """Of tesserad."""
        return (
            *("--kubernetes", f"127.0.0.1:{self.port}"),
            *("--kubernetes-ca", str(self.certificate)),
            *("--kubernetes-token-file", str(self.directory / "token")),
            *("--kubernetes-image", "tessera-agent"),
        )

    def fail_next(self, method, resource, fault):
        """The next such call: "lose" makes it and answers nothing, a number answers that."""
        with self.lock:
            self.faults.append((method, resource, fault))

    def take_fault(self, method, resource):
        for entry in self.faults:
            if entry[:2] == (method, resource):
                self.faults.remove(entry)
                return entry[2]
        return None

    # What controllers and kubelets do.

    def control(self):
        while not self.stopping.wait(0.05):
            with self.lock:
                for name, job in list(self.objects["jobs"].items()):
                    self.control_job(name, job)

    def control_job(self, name, job):
        pods = self.pods[name]
        for pod in pods:
            pod.poll()
        if "deletionTimestamp" in job["metadata"]:
            if all(pod.is_over() for pod in pods):
                del self.objects["jobs"][name], self.pods[name]
                self.objects["secrets"].pop(name, None)
            return
        phases = [pod.object["status"]["phase"] for pod in pods]
        if all(phase == "Succeeded" for phase in phases):
            self.conclude(job, "Complete")
        elif "Failed" in phases:
            for pod in pods:
                pod.signal(signal.SIGTERM)
            if all(pod.is_over() for pod in pods):
                self.conclude(job, "Failed", "BackoffLimitExceeded")
        elif set(phases) == {"Pending"}:
            self.schedule(name, pods)

    def schedule(self, name, pods):
        busy = sum(not pod.is_over() for each in self.pods.values() for pod in each)
        wants_secret = any("secret" in volume for volume in pods[0].object["spec"]["volumes"])
        if wants_secret and name not in self.objects["secrets"]:
            return  # ContainerCreating
        if busy + len(pods) <= self.machines:
            for pod in pods:
                pod.start(self.binaries, self.objects["secrets"])
            return
        for pod in pods:
            text = "0/4 nodes are available: 4 Insufficient cpu."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod.object["status"]["conditions"] = [condition | {"message": text}]

    @staticmethod
    def conclude(job, kind, reason=""):
        if not job["status"].get("conditions"):
            job["status"]["conditions"] = [{"type": kind, "status": "True", "reason": reason}]

    # What the API does.

    def handle(self, method, resource, name, query, body):
        """(code, object)"""
        with self.lock:
            if resource == "pods":
                return self.list_pods(query)
            kept = self.objects[resource]
            if method == "POST":
                return self.create(resource, kept, body)
            if name is None:
                return self.list(kept.values(), query)
            if name not in kept:
                return 404, {"message": f'{resource} "{name}" not found'}
            if method == "DELETE":
                return self.delete(resource, name, kept, body)
            return 200, kept[name]

    def create(self, resource, kept, body):
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(body, version, strict=True)
            except kubernetes_validate.ValidationError as failure:
                return 422, {"message": f"{version}: {failure.message}"}
        name = body["metadata"]["name"]
        if name in kept:
            return 409, {
                "message": f'{resource} "{name}" already exists',
                "reason": "AlreadyExists",
            }
        body["metadata"]["uid"] = str(uuid.uuid4())
        body["status"] = {}
        kept[name] = body
        if resource == "jobs":
            self.created.append(name)
            count = body["spec"]["completions"]
            self.pods[name] = [Pod(self, body, index) for index in range(count)]
        return 201, body

    def delete(self, resource, name, kept, body):
        if resource == "secrets":
            return 200, kept.pop(name)
        wanted = (body or {}).get("preconditions", {}).get("uid")
        if wanted not in (None, kept[name]["metadata"]["uid"]):
            return 409, {"message": "the UID in the precondition does not match"}
        kept[name]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        for pod in self.pods[name]:
            pod.signal(signal.SIGTERM)
        return 200, kept[name]

    def list(self, objects, query):
        """A page of those that the selector takes."""
        key, _, value = query.get("labelSelector", [""])[0].partition("=")
        chosen = [o for o in objects if o["metadata"].get("labels", {}).get(key) == value]
        begin = int(query.get("continue", ["0"])[0])
        end = begin + min(2, int(query["limit"][0]))  # small pages, so that there are several
        more = {"continue": str(end)} if end < len(chosen) else {}
        return 200, {"kind": "List", "metadata": more, "items": chosen[begin:end]}

    def list_pods(self, query):
        return self.list([pod.object for pods in self.pods.values() for pod in pods], query)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self):
        api = self.server.api
        url = urllib.parse.urlsplit(self.path)
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        match = PATH.match(url.path)
        resource = match.group(2) if match else ""
        fault = api.take_fault(self.command, resource)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            code, value = 401, {"message": "Unauthorized"}
        elif not match or not url.path.startswith(GROUPS.get(resource, "?")):
            code, value = 404, {"message": "the server could not find the requested resource"}
        elif isinstance(fault, int):
            code, value = fault, {"message": "out of order"}
        else:
            query = urllib.parse.parse_qs(url.query)
            code, value = api.handle(self.command, resource, match.group(3), query, body)
        api.calls.append((self.command, resource, code))
        if fault == "lose":
            self.close_connection = True
            return
        with api.lock:
            data = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815
