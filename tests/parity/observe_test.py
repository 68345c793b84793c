#!/usr/bin/env python3
"""TensorBoard event files and Chrome traces of a small job on two ranks, read back.

    observe_test.py --trainer PATH --assets DIR

The event files are read with a reader of this test's own, from the record format and the numbers
of the protobuf fields, so that a mistake in the trainer's own schema shows.
"""

import json
import struct

import ranks
import trials
from trials import expect, train

STEPS, SAVED_STEP, TRACED_STEPS = 4, 2, [3, 4]
TRAIN_TAGS = {
    "train/loss": "loss",
    "train/grad_norm": "gradNorm",
    "train/learning_rate": "learningRate",
    "train/epoch": "epoch",
    "train/entropy": "entropy",
    "train/mean_token_accuracy": "mean_token_accuracy",
    "train/num_tokens": "numTokens",
}
EVAL_TAGS = {"eval/loss": "loss", "eval/entropy": "entropy", "eval/runtime": "seconds"}
PHASES = {"data", "forward", "backward", "optimizer", "communication wait"}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    data, at = path.read_bytes(), 0
    while at < len(data):
        head = data[at : at + 8]
        (length,) = struct.unpack("<Q", head)
        body = data[at + 12 : at + 12 + length]
        checks = data[at + 8 : at + 12] + data[at + 12 + length : at + 16 + length]
        expect(len(body) == length and len(checks) == 8, f"{path.name}: a torn record")
        expect(
            struct.unpack("<II", checks) == (crc32c(head), crc32c(body)),
            f"{path.name}: a wrong checksum",
        )
        yield body
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of each field of a serialised message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 2:
            length, at = varint(data, at)
            value, at = data[at : at + length], at + length
        else:
            code, size = {1: ("<d", 8), 5: ("<f", 4)}[kind]
            (value,) = struct.unpack(code, data[at : at + size])
            at += size
        yield key >> 3, value


def read_events(path):
    """(version, step of the session start, {(tag, step): value}) of one file."""
    version, start, values = None, None, {}
    for body in records(path):
        event = dict(fields(body))
        expect(event[1] > 1.7e9, f"an event at {event[1]}")
        step = event.get(2, 0)
        version = event.get(3, version)
        if 7 in event:
            expect(dict(fields(event[7])) == {1: 1}, f"a session log of {event[7]}")
            start = step
        for number, value in fields(event.get(5, b"")):
            expect(number == 1, f"field {number} in a summary")
            entry = dict(fields(value))
            values[entry[1].decode(), step] = entry[2]
    return version, start, values


def make_spec(options, output, **training):
    training = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 2,
        "save_steps": SAVED_STEP,
    } | training
    held_out = str(options.assets / "data" / "eval.jsonl")
    return trials.make_spec(options, output, 2, fields={"data.eval": held_out}, **training)


def near(got, want):
    return abs(got - want) <= 1e-6 * max(abs(want), 1e-30)


def check_values(values, events):
    steps = [event["step"] for event in events if "step" in event]
    expect(steps, "there are no step events")
    for event in steps:
        for tag, name in TRAIN_TAGS.items():
            got, want = values.get((tag, event["step"])), float(ranks.metric(event, name))
            expect(got is not None and near(got, want), f"{tag}, {event['step']}: {got}, {want}")
    evaluation = next(event["eval"] for event in events if "eval" in event)
    for tag, name in EVAL_TAGS.items():
        got, want = values.get((tag, STEPS)), ranks.metric(evaluation, name)
        expect(got is not None and near(got, want), f"{tag}: {got}, {want}")


def check_tensorboard(options, scratch):
    output = scratch / "run"
    logs = scratch / "logs"
    spec = make_spec(options, output, report_to="tensorboard", logging_dir=str(logs))
    events = train(options, spec)
    (first,) = logs.iterdir()
    version, start, values = read_events(first)
    expect((version, start) == (b"brain.Event:2", 1), f"it begins with {version}, {start}")
    check_values(values, events)
    expect(("train/time/forward_seconds", 1) in values, f"the tags are {sorted(values)}")
    again = make_spec(
        options,
        output,
        report_to="tensorboard",
        logging_dir=str(logs),
        resume_from_checkpoint=str(output / f"checkpoint-{SAVED_STEP}"),
    )
    resumed = train(options, again)
    (second,) = set(logs.iterdir()) - {first}
    _, start, values = read_events(second)
    expect(start == SAVED_STEP + 1, f"the second file begins with step {start}")
    expect(min(step for _, step in values) == SAVED_STEP + 1, "it repeats earlier steps")
    check_values(values, resumed)
    return f"{len(values)} values in the second file"


def check_default_place(options, scratch):
    output = scratch / "quiet"
    train(options, make_spec(options, output, max_steps=1))
    expect(not (output / "runs").exists(), "event files without report_to")
    expect(not (output / "traces").exists(), "a trace without profile_steps")
    output = scratch / "default"
    train(options, make_spec(options, output, max_steps=1, report_to="tensorboard"))
    files = [path.parent.name for path in output.glob("runs/*/events.out.tfevents.*")]
    expect(files == ["parity"], f"the event files are under {files}")
    return "output_dir/runs/JOB"


def end(span):
    return span["ts"] + span["dur"]


def contains(outer, inner):
    return outer["ts"] <= inner["ts"] and end(inner) <= end(outer)


def within(span, time):
    return span["ts"] <= time <= end(span)


def check_nesting(name, spans):
    """Spans of a thread lie in each other or apart."""
    open_spans = {}
    for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        stack = open_spans.setdefault((span["pid"], span["tid"]), [])
        while stack and end(stack[-1]) <= span["ts"]:
            stack.pop()
        if stack:
            expect(contains(stack[-1], span), f"{name}: {span} ends after {stack[-1]}")
        stack.append(span)


def check_timeline(name, trace, operators, events):
    """Tracks of memory by owner that go up and down over the other trace, and their peak."""
    expect(
        trace["baseTimeNanoseconds"] == operators["baseTimeNanoseconds"],
        f"{name} counts from {trace['baseTimeNanoseconds']}, the other trace from another time",
    )
    tracks = {}
    for event in trace["traceEvents"]:
        expect(event["ph"] == "C", f"{name} has {event}")
        tracks.setdefault(event["name"], []).append((event["ts"], event["args"]["bytes"]))
    expect(trace["droppedEvents"] == 0, f"{name} lacks {trace['droppedEvents']} events")
    for owner in ("parameters", "activations", "head", "communication", "gradients", "optimizer"):
        expect(f"device: {owner}" in tracks, f"{name} has the tracks {sorted(tracks)}")
    backward = next(e for e in operators["traceEvents"] if e.get("name") == "backward")
    inside = [time for time, _ in tracks["device: activations"] if within(backward, time)]
    expect(inside, f"{name}: nothing is allocated in backward")
    for track, samples in tracks.items():
        times = [time for time, _ in samples]
        expect(times == sorted(times), f"{name}: {track} goes back in time")
        expect(min(count for _, count in samples) >= 0, f"{name}: {track} is below 0")
    expect(len({count for _, count in tracks["device: activations"]}) > 10, "activations are flat")
    device, host = trace["memoryPeaks"]
    expect((device["space"], host["space"]) == ("device", "host"), f"{name}: {device['space']}")
    cells = device["cells"]
    expect(sum(cell["bytes"] for cell in cells) == device["bytes"], f"{name}: {device}")
    highest = max(int(event["memory"]["peakBytes"]) for event in events if "memory" in event)
    expect(0 < device["bytes"] <= highest * 1.01, f"{name}: {device['bytes']} of {highest}")
    blocks = {(cell["owner"], cell["block"]) for cell in cells}
    for wanted in (("parameters", "model.layers.0"), ("optimizer", "model.layers.1")):
        expect(wanted in blocks, f"{name} has {sorted(blocks)}")


def check_peak(options, scratch):
    """The peak of the first two steps by owner, block and phase."""
    events = train(options, make_spec(options, scratch / "peak"))
    (peak,) = [event["memoryPeak"] for event in events if "memoryPeak" in event]
    expect(peak["step"] == 2, f"it is of step {peak['step']}")
    cells = peak["cells"]
    sizes = [int(cell["bytes"]) for cell in cells]
    expect(sum(sizes) == int(peak["peakBytes"]), f"{sum(sizes)} of {peak['peakBytes']} bytes")
    expect(sizes == sorted(sizes, reverse=True), "the largest are not first")
    found = {(cell["owner"], cell.get("block", ""), cell["phase"]) for cell in cells}
    for layer in ("model.embed_tokens", "model.layers.0", "model.layers.1"):
        for wanted in (("parameters", layer, "load"), ("optimizer", layer, "load")):
            expect(wanted in found, f"{wanted} is not among {sorted(found)}")
    expect("phase" in peak["reached"], f"it was reached in {peak['reached']}")
    return f"{len(cells)} cells"


def check_traces(options, scratch):
    output = scratch / "traced"
    events = train(options, make_spec(options, output, profile_steps=TRACED_STEPS))
    names = sorted(path.name for path in (output / "traces").iterdir())
    wanted = [
        f"step-{step}-rank-{rank}{kind}.json"
        for step in TRACED_STEPS
        for rank in (0, 1)
        for kind in ("-memory", "")
    ]
    expect(names == wanted, f"{names}")
    told = [event["trace"] for event in events if "trace" in event]
    paths = {str(output / "traces" / f"step-{step}-rank-0.json") for step in TRACED_STEPS}
    expect({trace["path"] for trace in told} == paths, f"the events tell of {told}")
    for name in names[::2]:
        operators = name.replace("-memory", "")
        check_timeline(
            name,
            json.loads((output / "traces" / name).read_text()),
            json.loads((output / "traces" / operators).read_text()),
            events,
        )
    for name in names[1::2]:
        trace = json.loads((output / "traces" / name).read_text())
        spans = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
        found = {event["name"] for event in spans}
        expect(found >= PHASES, f"{name} lacks {PHASES - found}")
        expect({"aten::mm", "aten::embedding"} & found, f"{name} has no operators: {found}")
        check_nesting(name, spans)
        backward = next(event for event in spans if event["name"] == "backward")
        inside = [e for e in spans if e["name"] == "aten::mm" and contains(backward, e)]
        expect(inside, f"{name}: backward has no matrix product in it")
    return f"{len(spans)} spans"


if __name__ == "__main__":
    trials.run_each(__doc__, check_tensorboard, check_default_place, check_traces, check_peak)
