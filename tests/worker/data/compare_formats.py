"""Compares tokens and loss masks of every format with those that TRL made (record_formats.py).

    python compare_formats.py BUILD/tests/print_examples [CASE ...]

Exits with 1 if a case differs.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import format_cases
from preference_cases import PREFERENCES

CASES = {**format_cases.FORMATS, **PREFERENCES}


def made(tool, case, folder):
    path = format_cases.write(case, folder)
    options = {
        "trainer": case.trainer,
        "tokenizer": str(folder / "tokenizer"),
        **format_cases.options(case, folder),
    }
    result = subprocess.run(
        [tool, path, json.dumps(options)], capture_output=True, text=True, timeout=60
    )
    if result.returncode != 0:
        return result.stderr.strip()
    return json.loads(result.stdout)


def difference(actual, expected):
    """In words, or None."""
    if isinstance(actual, str):
        return actual
    if isinstance(actual, dict) and isinstance(expected, dict):
        return next(filter(None, (difference(actual[k], expected[k]) for k in expected)), None)
    if len(actual) != len(expected):
        return f"{len(actual)} rows, expected {len(expected)}"
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if a != e:
            return f"row {i} is {a}, expected {e}"
    return None


def main():
    tool, names = sys.argv[1], sys.argv[2:] or list(CASES)
    recorded = json.loads((format_cases.FIXTURES / "formats.json").read_text(encoding="utf-8"))
    failed = set(recorded) != set(CASES)
    if failed:
        print("FAILED: fixtures/formats.json has other cases; run record_formats.py")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            actual = made(tool, CASES[name], pathlib.Path(folder))
        problem = difference(actual, recorded[name])
        print(f"FAILED: {name}: {problem}" if problem else f"ok: {name}, {len(actual)} rows")
        failed |= problem is not None
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
