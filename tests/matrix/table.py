"""docs/compatibility.md, made of what the matrix found and of what TRL does."""

from collections import Counter

import trl
from cells import MESHES, OTHERS
from methods import KINDS, METHODS

TITLES = {
    "sft": "SFT",
    "dpo": "DPO",
    "kto": "KTO",
    "reward": "Reward",
    "gkd": "GKD",
    "grpo": "GRPO, of recorded completions",
    "rloo": "RLOO, of recorded completions",
    "online_dpo": "Online DPO, of recorded completions",
    "ppo": "PPO, of recorded completions",
}
ALL = ""  # where a technique's name is asked for
PLACES = ["one rank", "sharded", *(mesh.name for mesh in MESHES)]
INTRODUCTION = """# What goes together

Written by `ninja -C build matrix-all`, from what the cells of the matrix (`tests/matrix/`) gave. A
number says how many cells proved the combination: each trained a tiny model with that technique on
that mesh, most with others beside it, and had the losses, gradient norms, metrics and final weights
of the plain run on one rank, and the peak of memory that the rehearsal had said.

| column | ranks |
|---|---|
| one rank | 1 |
| sharded | 2 with a half of weights, gradients and optimizer states each, as the technique has it |
| cp-allgather, cp-ring, cp-ulysses | 2 that share the stream, or two such pairs |
| hsdp | 2 copies, of one or two shards |

| cell | |
|---|---|
| 12 | twelve cells proved it |
| no knob | the method has no such field ([job-file.md](job-file.md)) |
| fails | not as it should be |
"""
TRL_INTRODUCTION = """
The last two columns are TRL {version} ({beside}), by its source:
`yes` where nothing in it is in the way, which is not to say that it was tried; `no`: not there;
`ignored`: another thing is done than the option says; `wrong`: done without a word, with other
numbers. Numbers in brackets are notes, below. `TRL, cp` is with accelerate's context parallelism
(`cp_size`: keys and values gathered, or passed round). DeepSpeed's Ulysses (`sp_size`), the other
way, is prepared for by SFT alone (`trl/trainer/sft_trainer.py`, `return_position_ids`).
"""


def place_of(cell):
    mesh = next((each.name for each in cell.techniques if each.axis == "mesh"), None)
    return mesh or ("one rank" if cell.world == 1 else "sharded")


class Notes:
    """Numbered in the order in which they are first asked for."""

    def __init__(self):
        self.verdicts = []

    def word(self, verdict):
        if not verdict.reason:
            return verdict.word
        if verdict not in self.verdicts:
            self.verdicts.append(verdict)
        return f"{verdict.word} [{self.verdicts.index(verdict) + 1}]"

    def lines(self):
        return [
            f"{i}. {verdict.reason[0].upper()}{verdict.reason[1:]} (`{file}`: {place})."
            for i, verdict in enumerate(self.verdicts, 1)
            for file, place in [verdict.where.split(": ", 1)]
        ]


class Counts:
    """Cells by method, technique and place; those that failed apart."""

    def __init__(self, results):
        self.proved, self.failed = Counter(), Counter()
        for cell, good in results:
            if any(map(cell.method.refusal, cell.techniques)):
                continue
            for technique in [None, *cell.techniques]:
                name = technique.name if technique else ALL
                counter = self.proved if good else self.failed
                counter[cell.method.kind, name, place_of(cell)] += 1

    def text(self, *key):
        if self.failed[key]:
            return f"fails ({self.failed[key]} of {self.failed[key] + self.proved[key]})"
        return str(self.proved[key])


def rows_of(kind, counts, notes):
    methods = [method for method in METHODS if method.kind == kind]
    of_all = [counts.text(kind, ALL, place) for place in PLACES]
    yield ["all cells", *of_all, "yes", notes.word(trl.verdict_with_cp(kind, ALL))]
    for technique in OTHERS:
        has_it = any(method.has(technique) for method in methods)
        ours = [
            counts.text(kind, technique.name, place) if has_it else "no knob" for place in PLACES
        ]
        theirs = [
            notes.word(trl.verdict(kind, technique.name)),
            notes.word(trl.verdict_with_cp(kind, technique.name)),
        ]
        yield [technique.name, *ours, *(theirs if has_it else ["", ""])]


def refusals():
    return [
        f"- {method.name} with any of {', '.join(t.name for t in OTHERS if t.axis == each.axis)}:"
        f' "{each.sentence}".'
        for method in METHODS
        for each in method.refuses
    ]


def text(results):
    """The whole document. `results`: cells, and whether each was as it should be."""
    counts, notes = Counts(results), Notes()
    lines = [
        INTRODUCTION.rstrip(),
        TRL_INTRODUCTION.format(version=trl.VERSION, beside=trl.BESIDE).rstrip(),
    ]
    header = ["technique", *PLACES, "TRL", "TRL, cp"]
    for kind in KINDS:
        variants = [method.name for method in METHODS if method.kind == kind]
        lines += ["", f"## {TITLES[kind]}", ""]
        if len(variants) > 1:
            lines += [f"Cells of {', '.join(variants)} together.", ""]
        lines += [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
        lines += [f"| {' | '.join(row)} |" for row in rows_of(kind, counts, notes)]
    lines += ["", "## What is refused", "", *refusals(), "", "## Notes on TRL", "", *notes.lines()]
    return "\n".join(lines) + "\n"
