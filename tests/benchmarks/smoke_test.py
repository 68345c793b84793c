"""A slice of `make bench` on a tiny model: the profile of a step, and the comparison with PyTorch's
fully_shard on two ranks, which needs nothing but what the tests have.

    smoke_test.py --corpus JSONL
"""

import argparse
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINING = ROOT / "benchmarks/training"


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(TRAINING / script), "--size", "tiny", "--no-write", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{script} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def cells(text: str, name: str) -> list[float]:
    """The numbers of the table's row of that name."""
    row = re.search(rf"^\| \**{re.escape(name)}\** \|(.*)\|$", text, re.MULTILINE)
    if row is None:
        sys.exit(f"there is no row of {name} in:\n{text}")
    return [float(number) for number in re.findall(r"[\d.]+", row.group(1))]


def check_profile(corpus: str) -> None:
    text = run(
        "step_profile.py", "--dtype", "float32", "--rows", "2", "--steps", "2", "--threads", "1",
        "--corpus", corpus,
    )  # fmt: skip
    parts = ["matrix products", "attention", "RMSNorm", "RoPE", "SwiGLU", "log-probabilities"]
    for name in ["a step", "its products alone", "attention's products alone", *parts]:
        if not cells(text, name)[0] > 0:
            sys.exit(f"nothing was spent on {name}:\n{text}")


def check_comparison(corpus: str) -> None:
    text = run(
        "bench.py", "--peers", sys.executable, "--only", "two ranks", "--runs", "1", "--steps", "2",
        "--corpus", corpus,
    )  # fmt: skip
    for side in ("tessera", "fully_shard", "fully_shard, mended"):
        if not min(cells(text, side)) > 0:
            sys.exit(f"{side} has no speed or memory:\n{text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True)
    options = parser.parse_args()
    check_profile(options.corpus)
    check_comparison(options.corpus)


if __name__ == "__main__":
    main()
