#!/usr/bin/env python3
"""Machines that join over TLS: enrolment, a job on two of them, renewal, and who is turned away.

join_test.py --bin DIR --assets DIR
"""

import argparse
import pathlib

from cluster import cluster, expect, run_job, wait_until
from jobs import sft_job
from remote import Coordinator


def test_job(options, service, coordinator):
    """A job of two ranks on two machines that joined, submitted and watched over TLS."""
    first = coordinator.token("first", "--role", "agent", "--expires", "1h")
    second = coordinator.token("second", "--role", "agent", "--node", "n2", "--expires", "1h")
    submitter = coordinator.token("submitter", "--role", "submitter", "--project", "team")
    viewer = coordinator.token("viewer", "--role", "viewer", "--project", "other")
    job = sft_job(options.assets, service.directory / "out", 2) | {"project": "team"}
    path = service.write_job("job", job)
    with (
        coordinator.agent("n1", "--enrol-token-file", str(first)),
        coordinator.agent("n2", "--enrol-token-file", str(second)),
    ):
        code, events, errors = run_job(
            service, *coordinator.remote_flags(submitter), "run", str(path)
        )
        expect(code == 0, f"exit code {code}: {errors}")
        expect(events[-1]["state"]["state"] == "SUCCEEDED", events[-1])
        starts = [e["state"]["reason"] for e in events if "state" in e]
        expect(any("n1" in text and "n2" in text for text in starts), starts)
        listed = coordinator.remote(viewer, "list")
        expect("cluster-test" not in listed.stdout, "a viewer of another project sees the job")
        refused = coordinator.remote(viewer, "submit", str(path))
        expect(refused.returncode != 0, "a viewer submitted")
        expect("takes the role submitter" in refused.stderr, refused.stderr)
    # Once enrolled, no token is needed: what it holds is its certificate.
    first.unlink()
    with coordinator.agent("n1", "--enrol-token-file", str(first)):
        pass


def test_refusals(service, coordinator):
    """One clear error each."""
    used = coordinator.token("used", "--role", "agent")
    flags = ("--enrol-token-file", str(used))
    with coordinator.agent("n3", *flags):
        pass
    coordinator.expect_refused("a used token", "has enrolled an agent", "n4", *flags)
    fresh = coordinator.token("fresh", "--role", "agent")
    flags = ("--enrol-token-file", str(fresh))
    impostor = service.directory / "agent-n3"
    impostor.rename(service.directory / "agent-n3-was")
    coordinator.expect_refused("a name that is taken", "node n3 has the certificate", "n3", *flags)
    coordinator.expect_refused("no certificate", "give --enrol-token-file", "n5")
    viewer = coordinator.token("reader", "--role", "viewer")
    coordinator.expect_refused(
        "a token of another role", "role viewer", "n5", "--enrol-token-file", str(viewer)
    )
    bound = coordinator.token("bound", "--role", "agent", "--node", "n6")
    coordinator.expect_refused(
        "a token of another node", "enrols node n6", "n7", "--enrol-token-file", str(bound)
    )
    expired = coordinator.token("expired", "--role", "agent", "--expires", "1s")
    wait_until(
        lambda: "ended" in coordinator.remote(operator(coordinator), "token", "list").stdout,
        "a token to end",
    )
    coordinator.expect_refused(
        "an expired token", "ended at", "n8", "--enrol-token-file", str(expired)
    )
    taken = service.directory / "agent-n9"
    taken.mkdir()
    other = service.directory / "agent-n3-was" / "identity"
    (taken / "identity").symlink_to(other)
    coordinator.expect_refused("another node's certificate", 'is that of node "n3"', "n9")
    return flags


def operator(coordinator):
    path = coordinator.service.directory / "operator.token"
    if not path.exists():
        coordinator.token("operator", "--role", "operator")
    return path


def test_wrong_authority(service, coordinator, flags):
    """A coordinator that is not of the authority that was named is not told a token."""
    other = Coordinator(service, "other")
    text = "is not of the authority in --ca"
    coordinator.expect_refused("a wrong authority", text, "n10", *flags, ca=other.ca)
    wrong = service.call(
        *("--address", coordinator.address, "--ca", str(other.ca)),
        *("--token-file", str(operator(coordinator)), "list"),
    )
    expect(wrong.returncode == 4 and "certificate" in wrong.stderr, wrong.stderr)
    other.stop()


def test_renewal(service):
    """A certificate that lives for seconds is renewed for as long as the agent lives."""
    coordinator = Coordinator(service, "short", "--agent-certificate-lifetime", "6s")
    token = coordinator.token("renewed", "--role", "agent")
    with coordinator.agent("r1", "--enrol-token-file", str(token)):
        path = service.directory / "agent-r1" / "identity" / "certificate.pem"
        first = path.read_text()
        wait_until(lambda: path.read_text() != first, "the certificate to be renewed")
        expect(path.stat().st_mode & 0o777 == 0o600, oct(path.stat().st_mode))
    coordinator.stop()


def check_secrets(service):
    """Nothing but the files that are made to hold them has a token or a key in it."""
    secrets = [path.read_text().strip() for path in service.directory.glob("*.token")]
    expect(len(secrets) >= 8, f"{len(secrets)} tokens")
    hidden = [secret.rsplit("_", 1)[1].encode() for secret in secrets] + [b"PRIVATE KEY-----\n"]
    for path in service.directory.rglob("*"):
        if not path.is_file() or path.suffix == ".token" or path.name.endswith("key.pem"):
            continue
        held = path.read_bytes()
        expect(not any(secret in held for secret in hidden), f"{path} holds a secret")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with cluster(options.bin) as service:
        coordinator = Coordinator(service)
        test_job(options, service, coordinator)
        print("ok: a job on two machines", flush=True)
        flags = test_refusals(service, coordinator)
        test_wrong_authority(service, coordinator, flags)
        print("ok: refusals", flush=True)
        test_renewal(service)
        print("ok: renewal", flush=True)
        coordinator.stop()
        check_secrets(service)
        print("ok: no secret is written", flush=True)


if __name__ == "__main__":
    main()
