#!/usr/bin/env python3
"""docs/compatibility.md is what the matrix writes when all of its cells are as they should be.

    table_test.py

Trains nothing: which cells there are, and so what their table is, is known before they run.
"""

import pathlib
import sys

import table
import trl
from cells import OTHERS, cells_named
from methods import KINDS

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "compatibility.md"
REQUIREMENTS = ROOT / "tests" / "parity" / "requirements.txt"


def problems():
    expected = table.text([(cell, True) for cell in cells_named("all", seed=1)])
    got = DOCUMENT.read_text(encoding="utf-8")
    for number, (ours, theirs) in enumerate(
        zip(got.splitlines(), expected.splitlines(), strict=False), 1
    ):
        if ours != theirs:
            yield f"{DOCUMENT.name}:{number} is\n  {ours}\nand the matrix would write\n  {theirs}"
            break
    else:
        if got != expected:
            yield f"{DOCUMENT.name} has another length than what the matrix writes"
    if f"trl=={trl.VERSION}" not in REQUIREMENTS.read_text(encoding="utf-8").split():
        yield f"trl.py is of TRL {trl.VERSION}, the parity tests are not"
    names = {technique.name for technique in OTHERS}
    for name in {*trl.OF_ALL, *trl.WITH_CP, *(name for _, name in trl.OF_METHOD)} - names:
        yield f"trl.py has {name}, which is no technique"
    for kind in {kind for kind, _ in trl.OF_METHOD} - set(KINDS):
        yield f"trl.py has {kind}, which is no method"


def main():
    found = list(problems())
    print("\n".join(found) or "as it should be")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
