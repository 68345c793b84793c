#!/usr/bin/env python3
"""Compares the engine's rows (tokenizer, truncation, packing) with TRL's, row by row.

    rows_test.py --rows PATH --assets DIR        the parity cases
    rows_test.py --rows PATH --kit DIR           the plans of a kit of recorded runs (see kit.py)

--rows names the print_rows tool. Exits with 1 if a plan differs.
"""

import argparse
import pathlib
import sys

import kit
import rows
from cases import CASES, check_assets, expectation


def own_plans(tool, assets):
    """Yields (name, actual rows, description expected)."""
    for name, case in CASES.items():
        if case.same_as or case.method != "sft":
            continue
        expected = expectation(name)
        check_assets(expected, assets)
        sft = case.sft_options()
        strategy = sft["packing_strategy"] if sft.get("packing") else "none"
        data = assets / "data" / f"{case.data}.jsonl"
        yield (
            name,
            rows.prepare(tool, data, assets / "tokenizer", sft["max_length"], strategy),
            expected["rows"],
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", required=True, type=pathlib.Path)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--assets", type=pathlib.Path)
    source.add_argument("--kit", type=pathlib.Path)
    options = parser.parse_args()
    if not options.rows.is_file():
        raise SystemExit(f"{options.rows} does not exist")
    plans = (
        own_plans(options.rows, options.assets)
        if options.assets
        else kit.plans(options.rows, options.kit)
    )
    failed = False
    for name, actual, expected in plans:
        problem = rows.difference(rows.describe(actual), expected)
        print(
            f"FAILED: {name}: {problem}" if problem else f"ok: {name}, {len(actual)} rows",
            flush=True,
        )
        failed |= problem is not None
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
