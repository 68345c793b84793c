"""What a Chrome trace of a step says of copies and kernels on a GPU."""

import json
import pathlib

COPIES, KERNELS = "gpu_memcpy", "kernel"


def spans(trace: dict, category: str) -> list[tuple[float, float]]:
    """[begin, end) of each event of a category, joined where they meet; in microseconds."""
    found = sorted(
        (event["ts"], event["ts"] + event.get("dur", 0))
        for event in trace["traceEvents"]
        if event.get("ph") == "X" and event.get("cat") == category
    )
    joined: list[tuple[float, float]] = []
    for begin, end in found:
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def length(of: list[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in of)


def common(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> float:
    """Microseconds that lie in spans of both; each list is joined and sorted."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def hidden_share(trace: dict) -> tuple[float, float]:
    """(share of the copies' time in which a kernel ran, microseconds of copies)."""
    copies = spans(trace, COPIES)
    time = length(copies)
    return (common(copies, spans(trace, KERNELS)) / time if time else 0.0), time


def read(path: pathlib.Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))
