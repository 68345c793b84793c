"""Prints what the device can do, as JSON: limits.py cpu|cuda [--small].

gemm_flops: of products of bfloat16 (on a processor: float32) matrices, a second. copy_bytes: of
reading and writing memory, a second. Medians of a few runs.
"""

import json
import statistics
import sys
import time

import torch

RUNS = 10


def seconds(device: str, work) -> float:
    """Of one call, the median; the first ones warm up."""
    times = []
    for run in range(RUNS + 2):
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if run >= 2:
            times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    device, small = sys.argv[1], "--small" in sys.argv
    width = 512 if small else 8192
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    a, b = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))
    source = torch.randn((4 << 20) if small else (1 << 30), device=device)
    target = torch.empty_like(source)
    print(
        json.dumps(
            {
                "gemm_flops": 2 * width**3 / seconds(device, lambda: a @ b),
                "copy_bytes": 2 * source.nbytes / seconds(device, lambda: target.copy_(source)),
                "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            }
        )
    )


if __name__ == "__main__":
    main()
