#!/usr/bin/env python3
"""The knob matrix: memory techniques leave the run as it is, and the rehearsal knows their peak.

    matrix_test.py --trainer PATH --assets DIR [--cells cover|pairs|all] [--seed N]
                   [--only WORD ...] [--no-rehearsal] [--jobs N]

Each cell trains a tiny model for some steps with a combination of techniques. Losses and gradient
norms of each step and the final weights must be those of the plain run (no technique on, one rank,
but for techniques that define what is computed), and the peak of each owner that of the rehearsal.
cover: combinations in which every two techniques meet; pairs: each alone, and every two, on two
models and one and two ranks; all: these and a seeded sample of combinations. --only keeps the cells
in whose names every WORD occurs. Exits with 1 if a cell differs.
"""

import json
import pathlib
import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from cells import Cell, cover, pairs, sample
from techniques import EXACT, PEAK_EXACT

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "parity"))
import ranks
import trials
from trials import TrialError, held, last_memory
from weights import tensors_of

NUM_STEPS = 3
GLOBAL_BATCH = 8
SAMPLE_SIZE = 200
# L2 distance of a tensor's final values over their norm. AdamW makes whole steps of gradients that
# nearly cancel, so weights differ more than gradients do.
WEIGHT_TOLERANCE_RATIO = 100
PLAIN = {
    "memory.gradient_checkpointing": False,
    "memory.head_chunk_tokens": 512,
    "method.sft.max_length": 64,
    "training.gradient_accumulation_steps": 1,
}


class RefusedError(TrialError):
    """The trainer's sentence about a combination that it does not take."""


def make_spec(options, cell, fields, output):
    steps = fields["training.gradient_accumulation_steps"]
    data_ranks = cell.world // fields.get("parallelism.cp_size", 1)
    return trials.make_spec(
        options,
        output,
        cell.world,
        model=cell.model,
        train="few",
        fields={"data.cache_dir": str(output.parent / "cache")} | fields,
        max_steps=NUM_STEPS,
        weight_decay=0.01,
        logging_steps=1,
        save_strategy="no",
        per_device_train_batch_size=GLOBAL_BATCH // data_ranks // steps,
    )


def fields_of(cell):
    """What the job file of a cell sets, and what that of its reference does."""
    own, reference = dict(PLAIN), dict(PLAIN)
    for technique in cell.techniques:
        own |= technique.fields | technique.needs
        reference |= technique.needs | (technique.fields if technique.defines else {})
    return own, reference


def train(options, cell, fields, rehearses):
    """(metrics of each step, final tensors, last memory by rank, rehearsal)"""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        spec = make_spec(options, cell, fields, scratch / "output")
        try:
            events = ranks.run(options.trainer, spec, cell.world, scratch)
        except ranks.RunError as error:
            raise refusal(scratch / "rank0.out") or TrialError(str(error)) from None
        steps = list(trials.steps_of(events).values())
        tensors = tensors_of(trials.final_directory(events))
        memory = [
            last_memory(ranks.read_events(scratch / f"rank{rank}.out"))
            for rank in range(cell.world)
        ]
        rehearsal = trials.rehearse(options, spec, scratch) if rehearses else None
    if len(steps) != NUM_STEPS:
        raise TrialError(f"{len(steps)} steps, expected {NUM_STEPS}")
    return steps, tensors, memory, rehearsal


def refusal(path):
    """The RefusedError that a trainer's last event tells of, if it does."""
    lines = path.read_text(encoding="utf-8").splitlines()
    failed = json.loads(lines[-1]).get("failed", {}) if lines else {}
    return RefusedError(failed["message"]) if failed.get("kind") == "USER" else None


def compare_steps(got, want, tolerance):
    for ours, theirs in zip(got, want, strict=True):
        for metric in ("loss", "gradNorm"):
            error = abs(ours[metric] - theirs[metric]) / abs(theirs[metric])
            if not error <= tolerance:
                raise TrialError(
                    f"step {theirs['step']}: {metric} is {ours[metric]!r}, it was"
                    f" {theirs[metric]!r}, {error:.1e} apart (at most {tolerance:.0e})"
                )


def compare_tensors(got, want, tolerance):
    if got.keys() != want.keys():
        raise TrialError(f"the tensors are others: {sorted(got.keys() ^ want.keys())}")
    for name, values in want.items():
        error = np.linalg.norm(got[name] - values) / max(np.linalg.norm(values), 1e-6)
        if not error <= tolerance:
            raise TrialError(f"{name} is {error:.1e} of its norm away (at most {tolerance:.0e})")


def compare_peaks(rehearsal, memory):
    """The error of the rehearsed peak, relative; no owner in either space may be off by more of the
    measured one, of the rank that held most."""
    ours, theirs = held(rehearsal), max(map(held, memory), key=lambda each: each["peak"])
    limit = PEAK_EXACT * theirs["peak"]
    for what in sorted(ours.keys() | theirs.keys()):
        rehearsed, real = ours.get(what, 0), theirs.get(what, 0)
        if abs(rehearsed - real) > limit:
            raise TrialError(f"{what} was rehearsed at {rehearsed} bytes and took {real}")
    return abs(ours["peak"] / theirs["peak"] - 1)


class Matrix:
    """Runs cells; remembers what references gave, and gives one that is being run to all who wait
    for it."""

    def __init__(self, options):
        self.options = options
        self.lock = threading.Lock()
        self.references = {}  # Futures; guarded by the lock

    def reference(self, model, fields):
        key = (model, json.dumps(fields, sort_keys=True))
        with self.lock:
            is_known = key in self.references
            future = self.references.setdefault(key, Future())
        if not is_known:
            try:
                future.set_result(train(self.options, Cell(model, 1, ()), fields, rehearses=False))
            except Exception as error:  # is raised wherever the result is asked for
                future.set_exception(error)
        return future.result()

    def check(self, cell):
        """What became of a cell, in words. Raises TrialError."""
        own, plain = fields_of(cell)
        steps, tensors, memory, rehearsal = train(
            self.options, cell, own, rehearses=self.options.rehearse
        )
        want_steps, want_tensors, *_ = self.reference(cell.model, plain)
        tolerance = max((technique.tolerance for technique in cell.techniques), default=EXACT)
        compare_steps(steps, want_steps, tolerance)
        compare_tensors(tensors, want_tensors, tolerance * WEIGHT_TOLERANCE_RATIO)
        if rehearsal is None:
            return "equal"
        error = compare_peaks(rehearsal, memory)
        return f"equal; the rehearsed peak is {error:.2%} off"

    def smallest_failure(self, cell):
        """`cell` without the techniques that its failure does not need."""
        for technique in cell.techniques:
            rest = tuple(other for other in cell.techniques if other is not technique)
            smaller = Cell(cell.model, cell.world, rest)
            try:
                self.check(smaller)
            except RefusedError:
                continue
            except TrialError:
                return self.smallest_failure(smaller)
        return cell

    def run(self, cell):
        """(whether all is well, a line about it)"""
        try:
            return True, self.check(cell)
        except RefusedError as refused:
            return False, f"refused: {refused}"
        except TrialError as error:
            return False, f"{error}\n  so does: {self.smallest_failure(cell)}"


def choose_cells(options):
    cells = {
        "cover": lambda: cover(options.seed),
        "pairs": pairs,
        "all": lambda: pairs() + sample(SAMPLE_SIZE, options.seed),
    }[options.cells]()
    return [cell for cell in cells if all(word in str(cell) for word in options.only)]


def add_options(parser):
    parser.add_argument("--cells", choices=("cover", "pairs", "all"), default="cover")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--no-rehearsal", dest="rehearse", action="store_false")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells at a time")


def main():
    options = trials.parse(__doc__, add_options)
    cells = choose_cells(options)
    if not cells:
        raise SystemExit("no cell has such a name")
    matrix = Matrix(options)
    num_failed = 0
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        for cell, (good, line) in zip(cells, pool.map(matrix.run, cells), strict=True):
            num_failed += not good
            if not good or options.only:
                print(f"{'ok' if good else 'FAILED'}: {cell}\n  {line}", flush=True)
    print(f"{len(cells)} cells, {num_failed} failed")
    sys.exit(1 if num_failed else 0)


if __name__ == "__main__":
    main()
