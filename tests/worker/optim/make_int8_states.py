#!/usr/bin/env python3
"""Writes fixtures/int8_states.jsonl: what bitsandbytes' 8-bit AdamW makes of some gradients.

    pip install bitsandbytes torch numpy; make_int8_states.py > fixtures/int8_states.jsonl

The maps are bitsandbytes' own, and so are the codes: of float64 its CPU backend takes the nearest,
as its CUDA kernels do (of float32 it takes what a coarse table says). Its update is CUDA only
(csrc/kernels.cu, kOptimizerStatic8bit2StateBlockwise); it is written out here between its
dequantize_blockwise and quantize_blockwise, with the rule that a state keeps its sign.
"""

import json

import bitsandbytes.functional as bnb
import torch

BLOCK = 256
NUMEL = 2 * BLOCK + 88
BETA1, BETA2, EPSILON, RATE, DECAY = 0.9, 0.95, 1e-8, 1e-2, 0.1
SIGNED, UNSIGNED = bnb.create_dynamic_map(signed=True), bnb.create_dynamic_map(signed=False)


def quantize(values, code):
    return torch.ops.bitsandbytes.quantize_blockwise(values.double(), code, BLOCK)


def dequantize(codes, absmax, code):
    return bnb.dequantize_blockwise(codes, absmax=absmax, code=code, blocksize=BLOCK)


def keep_signs(codes, values):
    """Of the signed map's codes: a negative value does not become zero."""
    lost = torch.signbit(values) & (SIGNED[codes.long()] == 0) & (values != 0)
    return torch.where(lost, codes - 1, codes)


def step(weights, state, gradient, number):
    mean = dequantize(state["mean"], state["mean_scale"], SIGNED)
    square = dequantize(state["square"], state["square_scale"], UNSIGNED)
    mean = mean * BETA1 + (1 - BETA1) * gradient
    square = square * BETA2 + (1 - BETA2) * gradient * gradient
    correction1, correction2 = 1 - BETA1**number, (1 - BETA2**number) ** 0.5
    weights = weights * (1 - RATE * DECAY)
    weights = weights - RATE * correction2 / correction1 * (
        mean / (square.sqrt() + correction2 * EPSILON)
    )
    codes, state["mean_scale"] = quantize(mean, SIGNED)
    state["mean"] = keep_signs(codes, mean)
    state["square"], state["square_scale"] = quantize(square, UNSIGNED)
    return weights


def write(**fields):
    print(
        json.dumps({k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in fields.items()})
    )


def main():
    torch.manual_seed(1)
    write(signed=SIGNED, unsigned=UNSIGNED)
    # As uneven as gradients are: sizes over many decades.
    values = torch.randn(NUMEL) * 10 ** (torch.rand(NUMEL) * 9 - 9)
    codes, absmax = quantize(values, SIGNED)
    write(values=values, codes=keep_signs(codes, values), scales=absmax)
    codes, absmax = quantize(values.abs(), UNSIGNED)
    write(values=values.abs(), codes=codes, scales=absmax)

    blocks = -(-NUMEL // BLOCK)
    state = {
        "mean": torch.zeros(NUMEL, dtype=torch.uint8),
        "square": torch.zeros(NUMEL, dtype=torch.uint8),
        "mean_scale": torch.zeros(blocks),
        "square_scale": torch.zeros(blocks),
    }
    weights = torch.randn(NUMEL)
    write(weights=weights)
    for number in range(1, 5):
        gradient = torch.randn(NUMEL) * 10 ** (torch.rand(NUMEL) * 4 - 4)
        weights = step(weights, state, gradient, number)
        write(gradient=gradient, weights=weights, **state)


if __name__ == "__main__":
    main()
