"""What an item of the checklist is, and what is kept of it: results.json and a table."""

import contextlib
import dataclasses
import json
import pathlib
import signal
import subprocess
import time
from collections.abc import Callable

# An item that has less time left is not begun.
LEAST_SECONDS = 5


class SkippedError(Exception):
    """Why the machine cannot show an item."""


class DiffError(Exception):
    """What came out otherwise than it should."""


@dataclasses.dataclass
class Seen:
    """In a sentence, and as figures."""

    text: str
    figures: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Item:
    name: str
    part: int  # of the two that fit ten minutes each
    limit_seconds: int  # on a GPU
    run: Callable[..., Seen]  # of a Machine

    @property
    def title(self) -> str:
        return (self.run.__doc__ or self.name).strip().splitlines()[0].rstrip(".")


@contextlib.contextmanager
def alarm(seconds: float):
    """TimeoutError after that long."""

    def give_up(*_):
        raise TimeoutError(f"no end within {seconds:.0f} s")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def failure_text(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}" if not isinstance(error, DiffError) else str(error)
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        text += f"\n{error.stderr[-2000:]}"
    return text


def attempt(item: Item, machine, seconds: float) -> dict:
    """Runs an item; whatever it raises is its result, and the others go on."""
    begin = time.monotonic()
    figures: dict = {}
    if seconds < LEAST_SECONDS:
        return {"result": "not run", "seen": "the time was up", "seconds": 0, "figures": figures}
    try:
        with alarm(seconds if machine.small else min(seconds, item.limit_seconds)):
            seen = item.run(machine)
        result, text, figures = "ok", seen.text, seen.figures
    except SkippedError as reason:
        result, text = "skipped", str(reason)
    except Exception as error:
        result, text = "failed", failure_text(error)
    return {
        "result": result,
        "seen": text,
        "seconds": round(time.monotonic() - begin, 1),
        "figures": figures,
    }


def cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")[:400]


def write(out: pathlib.Path, described: dict, items: list[Item], results: dict[str, dict]) -> None:
    """results.json and results.md, whole after each item."""
    lines = ["# GPU checklist", ""]
    lines += [f"- {name}: {value}" for name, value in described.items()]
    lines += ["", "| item | result | seconds | seen |", "|---|---|---|---|"]
    for item in items:
        if item.name in results:
            row = results[item.name]
            seconds = f"{row['seconds']:.0f}"
            lines.append(f"| {item.title} | {row['result']} | {seconds} | {cell(row['seen'])} |")
    contents = json.dumps({"machine": described, "items": results}, indent=1) + "\n"
    for name, text in (("results.json", contents), ("results.md", "\n".join(lines) + "\n")):
        unfinished = out / f"{name}.tmp"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.rename(out / name)
