"""Items on memory: what the ledger, a rehearsal and a limit say, against the device's allocator."""

import os
from unittest import mock

import shapes
import trials
from machine import Machine, largest_gap, relative, series
from outcomes import DiffError, Seen

# Of the rehearsed peak, on a device whose allocator rounds.
REHEARSED = 0.01
UNATTRIBUTED = 0.01
ROOM, LACK = 1.1, 0.9
# Of runs whose kernels may add in another order.
SAME_LOSS = 1e-2


def step_spec(machine: Machine, name: str, **more) -> dict:
    shape = machine.shape(shapes.MEDIUM, shapes.TINY)
    length = 64 if machine.small else 2048
    fields = {"method.sft.max_length": length} | more.pop("fields", {})
    dtype = more.pop("dtype", "float32" if machine.small else "bfloat16")
    return machine.shaped_spec(name, shape, dtype=dtype, max_steps=3, fields=fields, **more)


def ledger(machine: Machine) -> Seen:
    """The ledger's bytes are those of the device's allocator, and each has an owner"""
    events = machine.train(step_spec(machine, "ledger"))
    snapshots = [event["memory"] for event in events if "owners" in event.get("memory", {})]
    unattributed = max(int(s.get("unattributedAtPeakBytes", 0)) for s in snapshots)
    peak = int(snapshots[-1]["peakBytes"])
    if unattributed > UNATTRIBUTED * peak:
        raise DiffError(f"{unattributed} of {peak} bytes have no owner")
    figures = {"peak": peak, "unattributed": unattributed, "steps": []}
    for snapshot in snapshots:
        allocator = snapshot.get("deviceAllocator")
        if allocator is None:
            machine_has = "no caching allocator" if machine.device == "cpu" else "no statistics"
            if machine.device == "cuda":
                raise DiffError(f"step {snapshot['step']} has {machine_has}")
            continue
        held, counted = int(allocator["allocatedBytes"]), int(snapshot["currentBytes"])
        figures["steps"].append(allocator | {"currentBytes": counted})
        if held != counted:
            raise DiffError(
                f"step {snapshot['step']}: the allocator has {held}, the ledger {counted}"
            )
    against = f"{len(figures['steps'])} statistics of an allocator"
    return Seen(f"peak {peak} bytes, {unattributed} without owner; {against} agree", figures)


def rehearsal(machine: Machine) -> Seen:
    """A rehearsal says what a run holds, owner by owner"""
    figures = {}
    dtypes = ["float32"] if machine.small else ["float32", "bfloat16"]
    for dtype in dtypes:
        spec = step_spec(machine, "rehearsal", dtype=dtype)
        said = trials.held(trials.rehearse(machine.options(), spec, machine.scratch))
        held = trials.held(trials.last_memory(machine.train(spec)))
        figures[dtype] = {"rehearsed": said, "measured": held}
        allowed = (0 if machine.device == "cpu" else REHEARSED) * held["peak"]
        off = {
            owner: said.get(owner, 0) - held.get(owner, 0)
            for owner in (said | held)
            if abs(said.get(owner, 0) - held.get(owner, 0)) > allowed
        }
        if off:
            raise DiffError(
                f"{dtype}: measured {held['peak']} bytes, the rehearsal is off by {off}"
            )
    shares = [relative(f["rehearsed"]["peak"], f["measured"]["peak"]) for f in figures.values()]
    return Seen(f"the peak is off by {max(shares):.2%} at most", figures)


def limit(machine: Machine) -> Seen:
    """A job runs in a tenth more than its peak, and in a tenth less fails with the owners"""
    events = machine.train(step_spec(machine, "limit"))
    last = trials.last_memory(events)
    allocator = last.get("deviceAllocator", {})
    peak = max(int(last["peakBytes"]), int(allocator.get("reservedBytes", 0)))
    need = int(last["peakBytes"])

    def run(bytes_allowed):
        spec = step_spec(
            machine, "limit", fields={"resources.device_memory": str(int(bytes_allowed))}
        )
        return trials.run_alone(machine.options(), spec, machine.scratch)

    code, events = run(ROOM * peak)
    if code != 0:
        raise DiffError(f"with {ROOM * peak:.0f} bytes it ends with {events[-1]}")
    code, events = run(LACK * need)
    failure = events[-1].get("failed", {})
    if code != 1 or failure.get("kind") != "MEMORY":
        raise DiffError(f"with {LACK * need:.0f} of {need} bytes it ends with {code}, {events[-1]}")
    owners = [entry["owner"] for entry in failure["outOfMemory"]["memory"]["owners"]]
    if "parameters" not in owners:
        raise DiffError(f"the failure names {owners}")
    return Seen(failure["message"], {"peak": peak, "owners": owners})


def segments(machine: Machine) -> Seen:
    """Uneven documents under the allocator's two kinds of segments: what it reserves"""
    figures, losses = {}, {}
    for name, setting in (("fixed", "False"), ("expandable", "True")):
        spec = step_spec(machine, "segments", fields={"method.sft.packing": False})
        spec["training"] |= {"max_steps": 4 if machine.small else 30}
        with mock.patch.dict(
            os.environ, {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{setting}"}
        ):
            events = machine.train(spec)
        losses[name] = series(events, "loss")
        figures[name] = trials.last_memory(events).get("deviceAllocator", {})
    if largest_gap(losses["expandable"], losses["fixed"]) > SAME_LOSS:
        raise DiffError(f"the losses differ: {losses}")
    machine.need_cuda()
    text = ", ".join(
        f"{name}: {int(of['reservedBytes'])} bytes, {of.get('fragmentation', 0):.1%} in pieces"
        for name, of in figures.items()
    )
    return Seen(text, figures)
