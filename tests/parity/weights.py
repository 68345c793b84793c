"""Reads the tensors of a Hugging Face directory, with numpy alone."""

import json
import math

import numpy as np


def read_safetensors(path):
    """Yields (name, float64 values)."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "F32":
            values = np.frombuffer(data[begin:end], "<f4")
        elif entry["dtype"] == "BF16":
            values = (
                np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << np.uint32(16)
            ).view(np.float32)
        else:
            raise ValueError(f"{path}: {name} is {entry['dtype']}")
        yield name, values.astype(np.float64).reshape(entry["shape"])


def tensors_of(directory):
    """Of all files of the directory, by name."""
    return {
        name: values
        for file in sorted(directory.glob("*.safetensors"))
        for name, values in read_safetensors(file)
    }


def relative_error(actual, expected):
    if not math.isfinite(actual):
        return math.inf
    return abs(actual - expected) / abs(expected) if expected else abs(actual)


def weight_norms(directory):
    """The L2 norm of each tensor, over all files of the directory."""
    tensors = tensors_of(directory)
    if not tensors:
        raise FileNotFoundError(f"{directory} holds no safetensors")
    return {name: float(np.linalg.norm(values)) for name, values in tensors.items()}
