#!/usr/bin/env python3
"""Runs distillation on completions that student and teacher write themselves.

live_gkd_test.py --trainer PATH --assets DIR
"""

import json
import shutil

import live_test
import trials
from live_test import compare, recorded
from trials import expect, steps_of, train

STEPS = 6
ROWS = 4  # of a microbatch, of which a step has two
MICROBATCHES = 2 * STEPS
LONGEST = 10
SEED = 1  # with which no model writes the first step's


def make_spec(options, scratch, name, world=1, *, fields=None, model="llama", **training):
    training = {
        "max_steps": STEPS,
        "per_device_train_batch_size": ROWS // world,
        "gradient_accumulation_steps": 2,
        "save_strategy": "no",
    } | training
    own = {
        "teacher_model_name_or_path": str(options.assets / "models/llama_teacher"),
        "chat_template_path": str(options.assets / "chat.jinja"),
        "max_length": 512,
        "max_new_tokens": LONGEST,
    }
    return trials.make_spec(
        options,
        scratch / name,
        world,
        method="gkd",
        model=model,
        train="chats",
        fields={f"method.gkd.{name}": value for name, value in own.items()} | (fields or {}),
        **training,
    )


def run(options, scratch, name, world=1, *, model="llama", gkd=None, **training):
    """(the steps, what was trained on by microbatch) of a run that records."""
    record = scratch / f"record-{name}"
    fields = {f"method.gkd.{field}": value for field, value in (gkd or {}).items()}
    fields["generation.record_to"] = str(record)
    spec = make_spec(options, scratch, name, world, fields=fields, model=model, **training)
    steps = steps_of(train(options, spec))
    lines = recorded(record)
    expect(len(lines) == MICROBATCHES * ROWS, f"{len(lines)} completions are recorded")
    return steps, [lines[i : i + ROWS] for i in range(0, len(lines), ROWS)]


def is_written(microbatch):
    """Whether a model wrote it: of the data's own it is told which tokens count."""
    written = ["env_mask" not in line for line in microbatch]
    expect(all(written) or not any(written), "a microbatch is of two writers")
    return written[0]


def tokens_of(microbatch):
    return [(line["prompt_ids"], line["completion_ids"]) for line in microbatch]


def replays(options, scratch):
    """Whoever wrote: a run from what another recorded has its losses, to the bit."""
    for lmbda in (1, 0.5):
        name = f"live-{lmbda}"
        want, _ = run(options, scratch, name, 2, gkd={"lmbda": lmbda})
        spec = make_spec(options, scratch, f"again-{lmbda}", 2)
        spec["data"] = {"rollouts": str(scratch / f"record-{name}")}
        got = steps_of(train(options, spec))
        for step in want.values():
            del step["metrics"]["sampling/staleness"]
        for steps in (want, got):
            for step in steps.values():
                step["epoch"] = None
        compare(got, want)
    return f"{len(want)} steps each"


def nobody_writes_unasked(options, scratch):
    """A microbatch that no model writes is the data's, in its order."""
    spec = make_spec(options, scratch, "plain", fields={"method.gkd.lmbda": 0}, seed=SEED)
    plain = steps_of(train(options, spec))
    steps, microbatches = run(options, scratch, "some", gkd={"lmbda": 0.2}, seed=SEED)
    written = [is_written(each) for each in microbatches]
    # Up to these the weights are the same, too.
    untouched = [step for step in steps if not any(written[: 2 * step])]
    expect(any(written) and untouched, f"written are {written}")
    for step in untouched:
        expect(steps[step]["loss"] == plain[step]["loss"], f"step {step} has another loss")
    for each, is_new in zip(microbatches, written, strict=True):
        longest = max(len(line["completion_ids"]) for line in each)
        expect(not is_new or longest <= LONGEST, f"{longest} tokens were written")
    _, of_two = run(options, scratch, "two", 2, gkd={"lmbda": 0.2}, seed=SEED)
    expect([is_written(each) for each in of_two] == written, "two ranks drew others")
    same = min(2 * (1 + written.index(True) // 2), MICROBATCHES)  # up to the first update
    for i in range(same):
        expect(tokens_of(of_two[i]) == tokens_of(microbatches[i]), f"microbatch {i} differs")
    return f"{sum(written)} of {MICROBATCHES} are the student's"


def teachers_write(options, scratch):
    """What the teacher writes is what a student with its weights would."""
    _, by_teacher = run(options, scratch, "teacher", gkd={"seq_kd": True})
    expect(all(map(is_written, by_teacher)), "the teacher left some out")
    _, by_student = run(options, scratch, "student", model="llama_teacher", gkd={"lmbda": 1})
    for i in (0, 1):  # before its first update
        expect(tokens_of(by_student[i]) == tokens_of(by_teacher[i]), f"microbatch {i} differs")
    _, own = run(options, scratch, "own", gkd={"lmbda": 1})
    expect(tokens_of(own[0]) != tokens_of(by_teacher[0]), "student and teacher write the same")
    _, layerwise = run(options, scratch, "mixed", 2, gkd={"seq_kd": True, "lmbda": 0.5})
    expect(all(map(is_written, layerwise)), "one of the two has to write")
    return f"{len(by_teacher)} microbatches"


def goes_on(options, scratch):
    gkd = {"lmbda": 0.5, "seq_kd": True}
    training = {"save_strategy": "steps", "save_steps": 1}
    steps, _ = run(options, scratch, "whole", 2, gkd=gkd, **training)
    files = trials.files_of(scratch / "record-whole")
    for saved in (1, 4):
        copy = scratch / f"record-{saved}"
        shutil.copytree(scratch / "record-whole", copy)
        spec = make_spec(
            options,
            scratch,
            f"resumed-{saved}",
            2,
            fields={f"method.gkd.{name}": value for name, value in gkd.items()}
            | {"generation.record_to": str(copy)},
            resume_from_checkpoint=str(scratch / "whole" / f"checkpoint-{saved}"),
        )
        got = steps_of(train(options, spec))
        expect(min(got) == saved + 1 and max(got) == STEPS, f"steps {min(got)} to {max(got)}")
        compare(got, steps)
        expect(trials.files_of(copy) == files, f"after step {saved} other files were recorded")
    return "to the bit"


def takes_what_was_rehearsed(options, scratch):
    """Of prompts of one length, and completions that hardly ever end early."""
    documents = scratch / "documents.jsonl"
    with documents.open("w") as file:
        for i in range(ROWS * MICROBATCHES):
            tokens = [(7 * i + place) % 700 + 5 for place in range(30)]
            mask = [0] * 25 + [1] * 5
            file.write(json.dumps({"input_ids": tokens, "completion_mask": mask}) + "\n")
    worst = 0
    for number, gkd in enumerate(({"lmbda": 1}, {"seq_kd": True})):
        fields = {f"method.gkd.{name}": value for name, value in gkd.items()}
        spec = make_spec(options, scratch, f"out-{number}", 2, fields=fields)
        spec["data"] = {"train": str(documents)}
        error = live_test.compare_phases(options, spec, scratch, ("generate",))
        worst = max(worst, error)
    return f"within {worst:.1e}"


def main():
    trials.run_each(
        __doc__,
        replays,
        nobody_writes_unasked,
        teachers_write,
        goes_on,
        takes_what_was_rehearsed,
    )


if __name__ == "__main__":
    main()
