#!/usr/bin/env python3
"""The knob matrix: memory techniques leave the run as it is, and the rehearsal knows their peak.

    matrix_test.py --trainer PATH --assets DIR [--cells cover|pairs|all] [--seed N]
                   [--only WORD ...] [--no-rehearsal]

Each cell trains a tiny model for some steps with a combination of techniques. Losses and gradient
norms of each step and the final weights must be those of the plain run (no technique on, one rank,
but for techniques that define what is computed), and the peak of each owner that of the rehearsal.
cover: combinations in which every two techniques meet; pairs: each alone, and every two, on two
models and one and two ranks; all: these and a seeded sample of combinations. --only keeps the cells
in whose names every WORD occurs. Exits with 1 if a cell differs.
"""

import argparse
import collections
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from cells import Cell, cover, pairs, sample
from refusals import REFUSALS
from techniques import EXACT, PEAK_EXACT

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "parity"))
import ranks
from weights import read_safetensors

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


class CellError(Exception):
    """How a cell differs from what it should be."""


class RefusedError(Exception):
    """The trainer's sentence about a combination that it does not take."""


def make_spec(assets, cell, fields, output):
    spec = {
        "name": "matrix",
        "method": {"sft": {}},
        "model": {
            "path": str(assets / "models" / cell.model),
            "tokenizer": str(assets / "tokenizer"),
        },
        "data": {
            "train": str(assets / "data" / "few.jsonl"),
            "cache_dir": str(output.parent / "cache"),
        },
        "training": {
            "max_steps": NUM_STEPS,
            "learning_rate": 1e-3,
            "weight_decay": 0.01,
            "logging_steps": 1,
            "save_strategy": "no",
            "output_dir": str(output),
        },
        "parallelism": {"num_processes": cell.world},
        "resources": {"device": "cpu", "cpu_threads": 1},
    }
    for path, value in fields.items():
        *sections, name = path.split(".")
        place = spec
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    steps = spec["training"]["gradient_accumulation_steps"]
    spec["training"]["per_device_train_batch_size"] = GLOBAL_BATCH // cell.world // steps
    return spec


def fields_of(cell):
    """What the job file of a cell sets, and what that of its reference does."""
    own, reference = dict(PLAIN), dict(PLAIN)
    for technique in cell.techniques:
        own |= technique.fields | technique.needs
        reference |= technique.needs | (technique.fields if technique.defines else {})
    return own, reference


def tensors_of(directory):
    return {
        name: values
        for file in sorted(directory.glob("*.safetensors"))
        for name, values in read_safetensors(file)
    }


def train(options, cell, fields, rehearses):
    """(metrics of each step, final tensors, peaks by rank, rehearsal)"""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        spec = make_spec(options.assets, cell, fields, scratch / "output")
        try:
            events = ranks.run(options.trainer, spec, cell.world, scratch)
        except ranks.RunError as error:
            raise refusal(scratch / "rank0.out") or CellError(str(error)) from None
        steps = [event["step"] for event in events if "step" in event]
        tensors = tensors_of(pathlib.Path(events[-1]["finished"]["output"]))
        peaks = [peak_of(scratch / f"rank{rank}.out") for rank in range(cell.world)]
        rehearsal = rehearse(options, scratch) if rehearses else None
    if len(steps) != NUM_STEPS:
        raise CellError(f"{len(steps)} steps, expected {NUM_STEPS}")
    return steps, tensors, peaks, rehearsal


def refusal(path):
    """The RefusedError that a trainer's last event tells of, if it does."""
    lines = path.read_text(encoding="utf-8").splitlines()
    failed = json.loads(lines[-1]).get("failed", {}) if lines else {}
    return RefusedError(failed["message"]) if failed.get("kind") == "USER" else None


def peak_of(path):
    """The last MemorySnapshot that a rank reported."""
    events = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [event["memory"] for event in events if "memory" in event][-1]


def rehearse(options, directory):
    command = [options.trainer, "--rehearse", "--input", directory / "rank0.json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ranks.TIMEOUT_SECONDS)
    if done.returncode != 0:
        raise CellError(f"the rehearsal ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def compare_steps(got, want, tolerance):
    for ours, theirs in zip(got, want, strict=True):
        for metric in ("loss", "gradNorm"):
            error = abs(ours[metric] - theirs[metric]) / abs(theirs[metric])
            if not error <= tolerance:
                raise CellError(
                    f"step {theirs['step']}: {metric} is {ours[metric]!r}, it was"
                    f" {theirs[metric]!r}, {error:.1e} apart (at most {tolerance:.0e})"
                )


def compare_tensors(got, want, tolerance):
    if got.keys() != want.keys():
        raise CellError(f"the tensors are others: {sorted(got.keys() ^ want.keys())}")
    for name, values in want.items():
        error = np.linalg.norm(got[name] - values) / max(np.linalg.norm(values), 1e-6)
        if not error <= tolerance:
            raise CellError(f"{name} is {error:.1e} of its norm away (at most {tolerance:.0e})")


def by_owner(owners):
    return {entry["owner"]: int(entry.get("atPeakBytes", 0)) for entry in owners}


def compare_peaks(rehearsal, peaks, tolerance):
    """The error of the rehearsed peak, relative."""
    measured = peaks[rehearsal.get("rank", 0)]
    ours, theirs = by_owner(rehearsal.get("owners", [])), by_owner(measured.get("owners", []))
    limit = tolerance * int(measured["peakBytes"])
    for owner in sorted(ours.keys() | theirs.keys()):
        rehearsed, real = ours.get(owner, 0), theirs.get(owner, 0)
        if abs(rehearsed - real) > limit:
            raise CellError(f"{owner} was rehearsed at {rehearsed} bytes and took {real}")
    return abs(int(rehearsal["peakBytes"]) / int(measured["peakBytes"]) - 1)


class Matrix:
    """Runs cells; remembers what references gave."""

    def __init__(self, options):
        self.options = options
        self.reference = functools.lru_cache(maxsize=None)(self.run_reference)

    def run_reference(self, model, frozen_fields):
        return train(self.options, Cell(model, 1, ()), json.loads(frozen_fields), rehearses=False)

    def check(self, cell):
        """What became of a cell, in words. Raises CellError, RefusedError."""
        own, plain = fields_of(cell)
        steps, tensors, peaks, rehearsal = train(
            self.options, cell, own, rehearses=self.options.rehearse
        )
        want_steps, want_tensors, *_ = self.reference(cell.model, json.dumps(plain, sort_keys=True))
        tolerance = max((technique.tolerance for technique in cell.techniques), default=EXACT)
        compare_steps(steps, want_steps, tolerance)
        compare_tensors(tensors, want_tensors, tolerance * WEIGHT_TOLERANCE_RATIO)
        if rehearsal is None:
            return "equal"
        error = compare_peaks(
            rehearsal, peaks, max((t.peak_tolerance for t in cell.techniques), default=PEAK_EXACT)
        )
        return f"equal; the rehearsed peak is {error:.2%} off"

    def smallest_failure(self, cell):
        """`cell` without the techniques that its failure does not need."""
        for technique in cell.techniques:
            rest = tuple(other for other in cell.techniques if other is not technique)
            smaller = Cell(cell.model, cell.world, rest)
            try:
                self.check(smaller)
            except CellError:
                return self.smallest_failure(smaller)
            except RefusedError:
                continue
        return cell

    def run(self, cell):
        """(whether all is well, kind, a line about it)"""
        expected = next((row.sentence for row in REFUSALS if row.applies(cell)), None)
        try:
            verdict = self.check(cell)
            if expected:
                return False, "FAILED", f"it ran, and should be refused: {expected}"
        except RefusedError as refused:
            known = expected is not None and expected in str(refused)
            return known, "refused" if known else "FAILED", str(refused)
        except CellError as error:
            cell = self.smallest_failure(cell)
            return False, "FAILED", f"{error}\n  so does: {cell}"
        return True, "ok", verdict


def choose_cells(options):
    cells = {
        "cover": lambda: cover(options.seed),
        "pairs": pairs,
        "all": lambda: pairs() + sample(SAMPLE_SIZE, options.seed),
    }[options.cells]()
    return [cell for cell in cells if all(word in str(cell) for word in options.only)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trainer", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--cells", choices=("cover", "pairs", "all"), default="cover")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--no-rehearsal", dest="rehearse", action="store_false")
    options = parser.parse_args()
    options.assets = options.assets.resolve()
    cells = choose_cells(options)
    if not cells:
        raise SystemExit("no cell has such a name")
    matrix = Matrix(options)
    counts = collections.Counter()
    with ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) // 2)) as pool:
        for cell, (good, kind, line) in zip(cells, pool.map(matrix.run, cells), strict=True):
            counts[kind] += 1
            if not good or kind == "refused" or options.only:
                print(f"{kind}: {cell}\n  {line}", flush=True)
    print(f"{len(cells)} cells: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    sys.exit(1 if counts["FAILED"] else 0)


if __name__ == "__main__":
    main()
