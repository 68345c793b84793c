"""Runs docs/gpu-checklist.md: each item, whatever became of the others; writes results.json and a
table, results.md, after each.

    checklist.py --programs DIR --assets DIR [--device cuda|cpu] [--small] [--part 1|2]
                 [--budget SECONDS] [--out DIR] [--again] [ITEM ...]

Items that --out has a result of are not run again, unless they were not begun, or with --again.
--small: tiny models and few cases, for a processor. Exits with 1 where an item failed or was not
begun.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("parity", "support")]

import fault_items  # noqa: E402
import memory_items  # noqa: E402
import outcomes  # noqa: E402
import same_numbers  # noqa: E402
import speed_items  # noqa: E402
from machine import Machine  # noqa: E402
from outcomes import Item  # noqa: E402

ITEMS = [
    Item("kernels", 1, 60, same_numbers.kernels),
    Item("parity", 1, 180, same_numbers.parity),
    Item("parity_of_meshes", 1, 120, same_numbers.parity_of_meshes),
    Item("isolation", 1, 60, same_numbers.isolation),
    Item("knobs", 1, 120, same_numbers.knobs),
    Item("bfloat16_curve", 1, 60, same_numbers.bfloat16_curve),
    Item("ledger", 1, 60, memory_items.ledger),
    Item("rehearsal", 1, 60, memory_items.rehearsal),
    Item("limit", 1, 60, memory_items.limit),
    Item("segments", 2, 60, memory_items.segments),
    Item("killed", 1, 60, fault_items.killed),
    Item("lost_peer", 1, 120, fault_items.lost_peer),
    Item("overlap", 2, 60, speed_items.overlap),
    Item("decode", 2, 120, speed_items.decode),
    Item("training", 2, 180, speed_items.training),
    Item("training_adapters", 2, 300, speed_items.training_adapters),
]
# A call on a lent machine may take ten minutes, of which this leaves some to unpack and to end.
BUDGET_SECONDS = 540


def output_of(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"
    return done.stdout.strip()


def device_names() -> list[str]:
    """Of GPUs, with memory and driver."""
    listed = output_of(
        "nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"
    )
    return [] if listed.startswith("unknown") else listed.splitlines()


def describe(options: argparse.Namespace) -> dict:
    versions = "import torch; print(torch.__version__, torch.version.cuda)"
    version = ROOT / "VERSION"
    return {
        "tessera": version.read_text().strip() if version.exists() else "a checkout",
        "device": ", ".join(device_names()) if options.device == "cuda" else platform.processor(),
        "torch, cuda": output_of(sys.executable, "-c", versions),
        "cores": os.cpu_count(),
        "small": options.small,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", required=True, type=pathlib.Path)
    parser.add_argument("--assets", required=True, type=pathlib.Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--part", type=int, choices=(1, 2))
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("checklist-results"))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("items", nargs="*", metavar="ITEM")
    options = parser.parse_args()
    unknown = sorted(set(options.items) - {item.name for item in ITEMS})
    if unknown:
        parser.error(f"there is no item {unknown[0]}; there are {[item.name for item in ITEMS]}")
    for field in ("programs", "assets", "out"):
        setattr(options, field, getattr(options, field).resolve())
    if not (options.programs / "tessera-trainer").exists():
        parser.error(f"--programs {options.programs}: there is no tessera-trainer in it")
    if options.device == "cuda" and not device_names():
        parser.error("--device cuda: nvidia-smi names no GPU")
    return options


def chosen(options: argparse.Namespace) -> list[Item]:
    if options.items:
        return [item for item in ITEMS if item.name in options.items]
    return [item for item in ITEMS if options.part in (None, item.part)]


def known_results(options: argparse.Namespace) -> dict[str, dict]:
    path = options.out / "results.json"
    if options.again or not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))["items"]
    return {name: row for name, row in found.items() if row["result"] != "not run"}


def main() -> None:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    give_up = time.monotonic() + options.budget
    described, results = describe(options), known_results(options)
    with tempfile.TemporaryDirectory(prefix="tessera-checklist-") as scratch:
        machine = Machine(
            programs=options.programs,
            assets=options.assets,
            scratch=pathlib.Path(scratch),
            device=options.device,
            num_devices=len(device_names()) if options.device == "cuda" else os.cpu_count() or 1,
            small=options.small,
        )
        for item in chosen(options):
            if item.name in results:
                continue
            results[item.name] = row = outcomes.attempt(item, machine, give_up - time.monotonic())
            print(f"{row['result']}: {item.name}: {row['seen']}", flush=True)
            outcomes.write(options.out, described, ITEMS, results)
    print((options.out / "results.md").read_text(encoding="utf-8"))
    rows = [results[item.name]["result"] for item in chosen(options)]
    sys.exit(1 if {"failed", "not run"} & set(rows) else 0)


if __name__ == "__main__":
    main()
