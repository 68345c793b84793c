"""What a job must leave behind, whatever happened to it on the way."""

import collections
import itertools

from cluster import expect


def check_events(events, num_steps, baseline_losses=None):
    """The loss of each step that a client saw: all are there, none twice in an attempt, and where
    attempts repeat one, or another run had it, it is the same."""
    revisions = [int(event["revision"]) for event in events]
    expect(
        all(a < b for a, b in itertools.pairwise(revisions)),
        f"revisions do not grow: {revisions}",
    )
    attempts = [event.get("attempt", 0) for event in events]
    expect(attempts == sorted(attempts), f"events of an older attempt come late: {attempts}")
    steps = [(e["attempt"], e["step"]["step"]) for e in events if "step" in e]
    twice = [step for step, count in collections.Counter(steps).items() if count > 1]
    expect(not twice, f"(attempt, step) that came twice: {twice}")
    losses = {}
    for event in events:
        if "step" in event:
            step, loss = event["step"]["step"], event["step"]["loss"]
            known = losses.setdefault(step, loss)
            expect(known == loss, f"step {step} had loss {known!r}, and when repeated {loss!r}")
    missing = sorted(set(range(1, num_steps + 1)) - losses.keys())
    expect(not missing, f"steps without an event: {missing}")
    if baseline_losses:
        differing = [step for step in losses if losses[step] != baseline_losses[step]]
        expect(not differing, f"losses differ from the uninterrupted run's at {differing}")
    return losses


def check_output(output, num_steps, save_steps):
    """All checkpoints and the final directory, and nothing half-written."""
    names = sorted(path.name for path in output.iterdir())
    expected = [f"checkpoint-{step}" for step in range(save_steps, num_steps + 1, save_steps)]
    expect(names == sorted([*expected, "final"]), f"the output directory holds {names}")
    files = [path.name for path in output.rglob("*") if path.name.endswith(".tmp")]
    expect(not files, f"half-written files are left: {files}")
