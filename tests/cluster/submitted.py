"""What becomes of a job that was submitted: waited for, followed, compared with another run."""

from cluster import Follower, expect, wait_until
from jobs import sha256

DISTURBED_AT = 20  # step


def submit(service, name, job):
    done = service.call("submit", str(service.write_job(name, job | {"name": name})))
    expect(done.returncode == 0, done.stderr)
    return done.stdout.strip()


def get(service, job):
    return service.query("get", job)[0]


def wait_for_state(service, job, *states):
    def look():
        now = get(service, job)
        ended = now["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")
        expect(now["state"] in states or not ended, f"{job} is {now['state']}: {now['reason']}")
        return now if now["state"] in states else None

    return wait_until(look, f"job {job} to be {' or '.join(states)}")


def follow(service, job, disturb=None):
    """The job's events to its end; calls disturb() once it is well under way."""
    follower = Follower(service, "watch", job)
    pending = [disturb] if disturb else []

    def on_event(event):
        if pending and event.get("step", {}).get("step", 0) >= DISTURBED_AT:
            pending.pop()()

    follower.follow(on_event)
    code, errors = follower.end()
    expect(not pending, f"{job} ended before it was disturbed: {errors}")
    expect(code == 0, f"exit code {code}: {follower.events[-1:]} {errors}")
    return follower.events


def losses_of(events):
    return {event["step"]["step"]: event["step"]["loss"] for event in events if "step" in event}


def reasons_of(events):
    return [event["state"]["reason"] for event in events if "state" in event]


def outcome_of(events, output):
    """Its losses, and the digest of its weights."""
    return losses_of(events), sha256(output / "final" / "model.safetensors")


def check_same(events, output, baseline):
    losses, digest = baseline
    expect(losses_of(events) == losses, "the losses differ from the undisturbed run's")
    expect(sha256(output / "final" / "model.safetensors") == digest, "the final weights differ")
