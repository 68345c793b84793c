#!/usr/bin/env python3
"""The knob matrix: memory techniques and meshes leave a run of every method as it is, and the
rehearsal knows their peak.

    matrix_test.py --trainer PATH --assets DIR [--cells cover|pairs|all] [--seed N]
                   [--only WORD ...] [--no-rehearsal] [--jobs N] [--preforked LIBRARY]
                   [--table FILE]

Each cell trains a tiny model for some steps with a method and a combination of techniques. Losses,
gradient norms and metrics of each step and the final weights must be those of the plain run (the
method on one rank with no technique on, but for techniques that define what is computed), and the
peak of each owner that of the rehearsal. cover: combinations in which every two of technique,
method, model and world size meet; pairs: every technique with every method on every mesh, and every
two techniques on one rank and on several; all: these and a seeded sample of combinations.
Combinations that are refused are asked for, too. --only keeps the cells in whose names every WORD
occurs. --preforked starts the trainer as tests/support/preforked.cc has it. --table writes what
came out as docs/compatibility.md. Exits with 1 if a cell differs.
"""

import json
import pathlib
import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "parity"))
import ranks
import table
import trials
from cells import SETS, Cell, cells_named
from comparison import compare_peaks, compare_steps, compare_tensors
from methods import BY_NAME
from preforked import Preforked
from techniques import EXACT
from trials import TrialError, last_memory
from weights import tensors_of

NUM_STEPS = 2
GLOBAL_BATCH = 8
PLAIN = {
    "memory.gradient_checkpointing": False,
    "memory.head_chunk_tokens": 512,
    "training.gradient_accumulation_steps": 1,
}


class RefusedError(TrialError):
    """The trainer's sentence about a combination that it does not take."""


def rows_of_rank(cell, fields):
    """per_device_train_batch_size, of a batch that is the same on every mesh."""
    rows = GLOBAL_BATCH // fields["training.gradient_accumulation_steps"]
    if "accelerator_config" in cell.method.training:
        return rows
    return rows // (cell.world // fields.get("parallelism.cp_size", 1))


def make_spec(options, cell, fields, output):
    return trials.make_spec(
        options,
        output,
        cell.world,
        method=cell.method.kind,
        model=cell.model,
        train=cell.method.data,
        fields={"data.cache_dir": str(output.parent / "cache")}
        | cell.method.spec_fields(options.assets)
        | fields,
        max_steps=NUM_STEPS,
        weight_decay=0.01,
        logging_steps=1,
        save_strategy="no",
        per_device_train_batch_size=rows_of_rank(cell, fields),
    )


def fields_of(cell):
    """What the job file of a cell sets, and what that of its plain run does."""
    own, plain = dict(PLAIN), dict(PLAIN)
    for technique in cell.techniques:
        fields = technique.fields_of(cell.method.kind)
        own |= fields | technique.needs
        plain |= technique.needs | (fields if technique.is_defining(cell.method.kind) else {})
    return own, plain


def train(options, cell, fields, rehearses):
    """(metrics of each step, final tensors, last memory by rank, rehearsal)"""
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        spec = make_spec(options, cell, fields, scratch / "output")
        try:
            events = ranks.run(options.trainer, spec, cell.world, scratch, options.start)
            memory = [
                last_memory(ranks.read_events(scratch / f"rank{rank}.out"))
                for rank in range(cell.world)
            ]
        except ranks.RunError as error:
            raise refusal(scratch / "rank0.out") or TrialError(str(error)) from None
        steps = list(trials.steps_of(events).values())
        tensors = tensors_of(trials.final_directory(events))
        rehearsal = rehearse(options, spec, scratch) if rehearses else None
    if len(steps) != NUM_STEPS:
        raise TrialError(f"{len(steps)} steps, expected {NUM_STEPS}")
    return steps, tensors, memory, rehearsal


def rehearse(options, spec, scratch):
    path, out = scratch / "rehearsal.json", scratch / "rehearsal.out"
    path.write_text(json.dumps({"spec": spec, "job_id": "matrix", "attempt": 1}))
    command = [options.trainer, "--rehearse", "--input", path]
    code = options.start(command, out, out.with_suffix(".err")).wait(ranks.TIMEOUT_SECONDS)
    if code != 0:
        said = out.with_suffix(".err").read_text(encoding="utf-8").strip()
        raise TrialError(f"the rehearsal ended with {code}: {said}")
    return json.loads(out.read_text(encoding="utf-8"))


def refusal(path):
    """The RefusedError that a trainer's last event tells of, if it does."""
    lines = path.read_text(encoding="utf-8").splitlines()
    failed = json.loads(lines[-1]).get("failed", {}) if lines else {}
    return RefusedError(failed["message"]) if failed.get("kind") == "USER" else None


class Matrix:
    """Runs cells; remembers what plain runs gave, and gives one that is being run to all who wait
    for it."""

    def __init__(self, options):
        self.options = options
        self.lock = threading.Lock()
        self.plain_runs = {}  # Futures; guarded by the lock

    def plain_run(self, method, model, fields):
        key = (method, model, json.dumps(fields, sort_keys=True))
        with self.lock:
            is_known = key in self.plain_runs
            future = self.plain_runs.setdefault(key, Future())
        if not is_known:
            try:
                cell = Cell(method, model, 1, ())
                future.set_result(train(self.options, cell, fields, rehearses=False))
            except Exception as error:  # is raised wherever the result is asked for
                future.set_exception(error)
        return future.result()

    def check(self, cell):
        """What became of a cell, in words. Raises TrialError."""
        own, plain = fields_of(cell)
        steps, tensors, memory, rehearsal = train(
            self.options, cell, own, rehearses=self.options.rehearse
        )
        of_plain = BY_NAME[cell.method.like or cell.method.name]
        want_steps, want_tensors, *_ = self.plain_run(of_plain, cell.model, plain)
        tolerance = max((technique.tolerance for technique in cell.techniques), default=EXACT)
        regrouped = any(technique.regroups for technique in cell.techniques) and own != plain
        compare_steps(steps, want_steps, tolerance, regrouped, cell.method.size)
        compare_tensors(tensors, want_tensors, tolerance)
        if rehearsal is None:
            return "equal"
        error = compare_peaks(rehearsal, memory)
        return f"equal; the rehearsed peak is {error:.2%} off"

    def smallest_failure(self, cell):
        """`cell` without the techniques that its failure does not need."""
        for technique in cell.techniques:
            rest = tuple(other for other in cell.techniques if other is not technique)
            smaller = Cell(cell.method, cell.model, cell.world, rest)
            try:
                self.check(smaller)
            except RefusedError:
                continue
            except TrialError:
                return self.smallest_failure(smaller)
        return cell

    def run(self, cell):
        """(whether all is well, a line about it)"""
        expected = next(filter(None, map(cell.method.refusal, cell.techniques)), None)
        try:
            line = self.check(cell)
            return expected is None, line
        except RefusedError as refused:
            return bool(expected) and expected.sentence == str(refused), f"refused: {refused}"
        except TrialError as error:
            return False, f"{error}\n  so does: {self.smallest_failure(cell)}"


def add_options(parser):
    parser.add_argument("--cells", choices=SETS, default="cover")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--no-rehearsal", dest="rehearse", action="store_false")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells at a time")
    parser.add_argument("--preforked", type=pathlib.Path, metavar="LIBRARY")
    parser.add_argument("--table", type=pathlib.Path, metavar="FILE")


def run_all(options, cells):
    """[(cell, whether all is well)]; prints what is not."""
    matrix, results = Matrix(options), []
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        for cell, (good, line) in zip(cells, pool.map(matrix.run, cells), strict=True):
            results.append((cell, good))
            if not good or options.only:
                print(f"{'ok' if good else 'FAILED'}: {cell}\n  {line}", flush=True)
    return results


def main():
    options = trials.parse(__doc__, add_options)
    cells = [
        cell
        for cell in cells_named(options.cells, options.seed)
        if all(word in str(cell) for word in options.only)
    ]
    if not cells:
        raise SystemExit("no cell has such a name")
    server = Preforked(options.preforked, options.trainer) if options.preforked else None
    options.start = server.start if server else ranks.start_process
    try:
        results = run_all(options, cells)
    finally:
        if server:
            server.close()
    if options.table:
        options.table.write_text(table.text(results), encoding="utf-8")
    num_failed = sum(not good for _, good in results)
    print(f"{len(cells)} cells, {num_failed} failed")
    sys.exit(1 if num_failed else 0)


if __name__ == "__main__":
    main()
