"""Runs the matrix products of a step, and nothing else: what the step could not be faster than.

    products.py THREADS REPEATS < PRODUCTS.json

PRODUCTS.json is a list of {"adds", "left", "right"}, in the order of the step, of operands
[sizes, strides, type]. Prints the seconds that all of them take, a line for each of REPEATS.
"""

import json
import sys
import time

import torch

# What a step multiplies lies in many places: each operand is one of so many.
COPIES = 3
TYPES = {"float": torch.float32, "c10::BFloat16": torch.bfloat16}


class Operands:
    def __init__(self):
        self._made: dict[tuple, list[torch.Tensor]] = {}
        self._uses = 0

    def of(self, sizes: list[int], strides: list[int], kind: str) -> torch.Tensor:
        key = (tuple(sizes), tuple(strides), kind)
        copies = self._made.setdefault(key, [])
        if len(copies) < COPIES:
            extent = 1 + sum((size - 1) * stride for size, stride in zip(*key[:2], strict=True))
            flat = torch.randn(extent).to(TYPES[kind])
            copies.append(flat.as_strided(*key[:2]))
        self._uses += 1
        return copies[self._uses % len(copies)]


def prepare(product: dict, operands: Operands):
    left, right = operands.of(*product["left"]), operands.of(*product["right"])
    sizes = [*left.shape[:-1], right.shape[-1]]
    strides = [sizes[-2] * sizes[-1], sizes[-1], 1][-len(sizes) :]
    out = operands.of(sizes, strides, product["left"][2])
    if len(sizes) == 3:
        return lambda: torch.bmm(left, right, out=out)
    if product["adds"]:
        return lambda: out.addmm_(left, right)
    return lambda: torch.mm(left, right, out=out)


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    torch.set_grad_enabled(False)
    operands = Operands()
    calls = [prepare(product, operands) for product in json.load(sys.stdin)]
    for repeat in range(int(sys.argv[2]) + 1):
        begin = time.perf_counter()
        for call in calls:
            call()
        if repeat > 0:  # the first one makes what the library keeps
            print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main()
