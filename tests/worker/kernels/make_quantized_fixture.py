#!/usr/bin/env python3
"""Writes what bitsandbytes makes of a matrix: make_quantized_fixture.py FILE.

Run by hand, in an environment with torch, safetensors and bitsandbytes 0.50.2 (its CPU build); the
result, quantized.safetensors, is committed. The matrix has neither whole blocks nor whole groups.
"""

import sys

import torch
from bitsandbytes import functional
from safetensors.torch import save_file

ROWS, WIDTH = 173, 106
SHOWN = 20  # rows whose values are kept


def main():
    torch.manual_seed(7)
    values = torch.randn(ROWS, WIDTH) * torch.rand(ROWS, 1).mul(4).exp() * 0.01
    values[5] = 0
    values[6, :70] = 0.25
    tensors = {"values": values.bfloat16()}
    values = values.bfloat16().float()
    codes, state = functional.quantize_4bit(values, quant_type="nf4")
    tensors |= {"nf4.codes": codes.flatten(), "nf4.scales": state.absmax}
    tensors["nf4.dequantized"] = functional.dequantize_4bit(codes, state)[:SHOWN]
    codes, state = functional.quantize_4bit(values, quant_type="nf4", compress_statistics=True)
    tensors |= {
        "nested.scales": state.absmax,
        "nested.group_scales": state.state2.absmax,
        "nested.mean": state.offset.reshape(1),
        "nested.map": state.state2.code,
        "nested.dequantized": functional.dequantize_4bit(codes, state)[:SHOWN],
    }
    # Its int8 of a row of zeros is undefined.
    codes, scales, _ = functional.int8_vectorwise_quant(values + 0.5)
    tensors |= {"int8.codes": codes, "int8.scales": scales}
    tensors["int8.dequantized"] = functional.int8_vectorwise_dequant(codes, scales)[:SHOWN]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, sys.argv[1])


if __name__ == "__main__":
    main()
