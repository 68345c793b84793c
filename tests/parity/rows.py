"""Rows of tokens, as print_rows prints them and as expectations write them down.

A row is a pair: its tokens, and the lengths of the documents in it. Written down it reads
"12+7+30:5be1f2c8": the lengths, and the start of the SHA-256 of the tokens.
"""

import hashlib
import json
import subprocess

NUM_SHOWN = 48  # rows given one by one, to find a difference; the rest stands in the hash of all
TIMEOUT_SECONDS = 120


def prepare(tool, data, tokenizer, max_length, strategy):
    """The rows that the engine makes of a file. A max_length of 0 is no limit."""
    command = [tool, data, tokenizer, str(max_length), strategy]
    result = subprocess.run(command, capture_output=True, timeout=TIMEOUT_SECONDS, text=True)
    if result.returncode != 0:
        raise SystemExit(f"{tool} ended with {result.returncode}: {result.stderr.strip()}")
    plan = [json.loads(line) for line in result.stdout.splitlines()]
    return [(row["tokens"], row["lengths"]) for row in plan]


def write_down(row):
    tokens, lengths = row
    digest = hashlib.sha256(",".join(map(str, tokens)).encode()).hexdigest()
    return f"{'+'.join(map(str, lengths))}:{digest[:8]}"


def describe(rows):
    texts = [write_down(row) for row in rows]
    return {
        "count": len(texts),
        "sha256": hashlib.sha256("\n".join(texts).encode()).hexdigest(),
        "first": texts[:NUM_SHOWN],
    }


def difference(actual, expected):
    """Between two descriptions: the first one, in words, or None."""
    for i, (a, e) in enumerate(zip(actual["first"], expected["first"], strict=False)):
        if a != e:
            return f"row {i} is {a}, expected {e}"
    if actual["count"] != expected["count"]:
        return f"{actual['count']} rows, expected {expected['count']}"
    if actual["sha256"] != expected["sha256"]:
        return f"a row after the first {NUM_SHOWN} differs"
    return None
