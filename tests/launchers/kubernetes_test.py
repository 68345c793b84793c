#!/usr/bin/env python3
"""launcher: kubernetes, against an API server that is played here (kubernetes_api.py).

kubernetes_test.py --bin DIR --assets DIR [--all | SCENARIO ...]

The agents, the ranks and the TLS are real. Whatever the API loses or refuses, each allocation is
made once, and the job ends with the losses and the very weights of one of our own scheduler's.
"""

import contextlib
import json
import pathlib
import signal
import tempfile

from kubernetes_api import Api
from launched import (
    Coordinator,
    check_same,
    cluster,
    expect,
    follow,
    get,
    launched_job,
    reasons_of,
    run_scenarios,
    submit,
    wait_for_reason,
    wait_for_state,
    wait_until,
)
from slurm import free_ports


@contextlib.contextmanager
def service_with(options, *flags, tls=False, machines=4, devices=1):
    with (
        tempfile.TemporaryDirectory(prefix="kubernetes-") as directory,
        Api(directory, options.bin, machines) as api,
        cluster(options.bin) as service,
    ):
        address = f"127.0.0.1:{free_ports(1)[0]}"
        flags = (
            *("--listen", address, "--launcher-coordinator", address),
            *("--kubernetes-devices", str(devices), *api.flags(), *flags),
            *(() if tls else ("--insecure-loopback",)),
        )
        with Coordinator(service, flags) as coordinator:
            yield service, coordinator, api


def check_clean(service, api):
    for kept in api.objects.values():
        wait_until(lambda kept=kept: not kept, f"{list(kept)} to be deleted")
    wait_until(lambda: not service.query("nodes"), "the allocations' nodes to be forgotten")


def job_of_two_pods(options, baseline):
    """Over TLS, the tokens in a Secret; the template of an operator is merged in."""
    with tempfile.TemporaryDirectory() as directory:
        template = pathlib.Path(directory) / "template.json"
        claim = {"name": "jobs", "persistentVolumeClaim": {"claimName": "jobs"}}
        mount = {"name": "jobs", "mountPath": "/srv/tessera"}
        container = {"name": "tessera-agent", "volumeMounts": [mount]}
        spec = {"volumes": [claim], "containers": [container]}
        template.write_text(json.dumps({"spec": spec}))
        flags = ("--kubernetes-template", str(template))
        with service_with(options, *flags, tls=True) as (service, _, api):
            output = service.directory / "output"
            job = submit(service, "pods", launched_job(options, output, "kubernetes"))
            seen = []

            def look():
                with api.lock:
                    (made,) = api.objects["jobs"].values()
                    seen.append(json.loads(json.dumps(made)))

            check_same(follow(service, job, look), output, baseline)
            check_clean(service, api)
            (manifest,) = seen
            pod = manifest["spec"]["template"]["spec"]
            expect(claim in pod["volumes"], f"the template is not in {pod['volumes']}")
            expect(mount in pod["containers"][0]["volumeMounts"], f"{pod['containers']}")
            expect(pod["securityContext"]["runAsNonRoot"], "its pods may be root")
            expect(manifest["metadata"]["annotations"]["tessera/job"] == job, f"{manifest}")
            listed = service.call("token", "list").stdout
            expect("tessera-" not in listed, f"credentials are left: {listed}")
            expect(len(api.created) == 1, f"Jobs: {api.created}")


def lost_answers(options, baseline):
    """Every kind of call is lost or refused once; then the coordinator dies while it submits."""
    with service_with(options, tls=True) as (service, coordinator, api):
        for method, resource, fault in (
            *(("POST", "jobs", "lose"), ("POST", "jobs", 429), ("POST", "secrets", "lose")),
            *(("DELETE", "jobs", 500), ("DELETE", "jobs", "lose")),
            *(("GET", "jobs", 500), ("GET", "pods", "lose")),
        ):
            api.fail_next(method, resource, fault)
        output = service.directory / "output"
        job = submit(service, "lost", launched_job(options, output, "kubernetes"))
        check_same(follow(service, job), output, baseline)
        check_clean(service, api)
        expect(not api.faults, f"never met: {api.faults}")
        expect(len(api.created) == 1, f"Jobs: {api.created}")
        expect(("POST", "jobs", 409) in api.calls, "it was never made again")
        expect(get(service, job)["attempt"] == 1, "it was restarted")

        # Made, and the answer lost with the coordinator.
        made = len(api.created)
        api.go_away()
        output = service.directory / "again"
        job = submit(service, "killed", launched_job(options, output, "kubernetes"))
        wait_for_reason(service, job, "no answer of the API server")
        api.fail_next("POST", "jobs", "lose")
        api.listen()
        wait_until(lambda: len(api.created) > made, "the Job to be made")
        coordinator.crash()
        coordinator.start()
        check_same(follow(service, job), output, baseline)
        check_clean(service, api)
        expect(len(api.created) == made + 1, f"Jobs: {api.created}")


def evicted(options, baseline):
    """A pod is deleted under the job: it stops at a checkpoint, and goes on in another Job."""
    with service_with(options) as (service, _, api):
        output = service.directory / "output"
        job = submit(service, "evicted", launched_job(options, output, "kubernetes"))

        def evict():
            with api.lock:
                (pods,) = api.pods.values()
                condition = {"type": "DisruptionTarget", "status": "True"}
                why = {"reason": "PreemptionByScheduler", "message": "made room"}
                for pod in pods:
                    pod.object["status"]["conditions"] = [condition | why]
                    pod.signal(signal.SIGTERM)

        events = follow(service, job, evict)
        check_same(events, output, baseline)
        reasons = reasons_of(events)
        expect(any("goes on from the checkpoint" in reason for reason in reasons), f"{reasons}")
        expect(get(service, job)["attempt"] == 2, "not one restart")
        check_clean(service, api)
        expect(len(api.created) == 2, f"Jobs: {api.created}")


def evicted_one(options, baseline):
    """One pod alone, and the Job does not notice: its ranks stop together, so that the other pod is
    of no use either. Nothing more is started on it, and it is not waited for."""
    with service_with(options) as (service, _, api):
        output = service.directory / "output"
        job = submit(service, "one", launched_job(options, output, "kubernetes", max_restarts=1))

        def evict():
            with api.lock:
                (pods,) = api.pods.values()
                pods[1].signal(signal.SIGTERM)

        events = follow(service, job, evict)
        check_same(events, output, baseline)
        expect(get(service, job)["attempt"] == 2, f"not one restart: {reasons_of(events)}")
        check_clean(service, api)
        expect(len(api.created) == 2, f"Jobs: {api.created}")


def gpus(options, _baseline):
    """device: cuda: the manifest that arrives asks for the GPUs of each pod, and fewer ranks than
    the job wants are not asked for."""
    with service_with(options, machines=0, devices=4) as (service, _, api):
        output = service.directory / "output"
        spec = launched_job(options, output, "kubernetes", ranks=8, device="cuda")
        spec["parallelism"]["min_num_processes"] = 2
        job = submit(service, "gpus", spec)
        wait_for_reason(service, job, "Unschedulable")
        with api.lock:
            (manifest,) = api.objects["jobs"].values()
        wanted = manifest["spec"]
        expect((wanted["completions"], wanted["parallelism"]) == (2, 2), f"{wanted}")
        (container,) = wanted["template"]["spec"]["containers"]
        expect(container["resources"]["limits"] == {"nvidia.com/gpu": "4"}, f"{container}")
        expect("--cuda-devices=all" in container["args"], f"{container}")
        expect("--cpu-slots=0" in container["args"], f"{container}")
        expect(service.call("cancel", job).returncode == 0, "cancel failed")
        wait_for_state(service, job, "CANCELLED")
        check_clean(service, api)


def killed_pod(options, baseline):
    """A pod is killed outright: the kubelet's word for it lets the job start again."""
    with service_with(options) as (service, _, api):
        output = service.directory / "output"
        spec = launched_job(options, output, "kubernetes")
        spec["training"]["save_steps"] = 10
        job = submit(service, "killed", spec)

        def kill():
            with api.lock:
                (pods,) = api.pods.values()
                pods[1].signal(signal.SIGKILL)

        check_same(follow(service, job, kill), output, baseline)
        expect(get(service, job)["attempt"] == 2, "not one restart")
        check_clean(service, api)


def pending(options, _baseline):
    """It says why it waits, and is cancelled while it does."""
    with service_with(options, machines=1) as (service, _, api):
        output = service.directory / "output"
        job = submit(service, "waiting", launched_job(options, output, "kubernetes"))
        wait_for_reason(service, job, "Unschedulable: 0/4 nodes are available")
        expect(service.call("cancel", job).returncode == 0, "cancel failed")
        wait_for_state(service, job, "CANCELLED")
        check_clean(service, api)


def refused(options, _baseline):
    """What the API never takes fails the job; what an operator may mend makes it wait."""
    with service_with(options) as (service, _, api):
        api.fail_next("POST", "jobs", 422)
        output = service.directory / "output"
        job = submit(service, "refused", launched_job(options, output, "kubernetes"))
        failed = wait_for_state(service, job, "FAILED")
        expect("kubernetes refuses the job" in failed["reason"], failed["reason"])
        (api.directory / "token").write_text("none")
        job = submit(service, "unknown", launched_job(options, output, "kubernetes"))
        wait_for_reason(service, job, "answered 401")
        expect(get(service, job)["state"] == "QUEUED", "a job failed for the operator's mistake")
        expect(service.call("cancel", job).returncode == 0, "cancel failed")


SCENARIOS = {
    "job_of_two_pods": job_of_two_pods,
    "lost_answers": lost_answers,
    "evicted": evicted,
    "evicted_one": evicted_one,
    "gpus": gpus,
    "killed_pod": killed_pod,
    "pending": pending,
    "refused": refused,
}
SLICE = ("job_of_two_pods", "lost_answers", "evicted_one")


if __name__ == "__main__":
    run_scenarios(__doc__, SCENARIOS, SLICE)
