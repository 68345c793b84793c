"""Which file may include which: includes point one way."""

import re
from collections.abc import Iterator

from tree import CXX, Finding, Tree, line_of

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?P<path>["<][^">]+)[">]', re.MULTILINE)
_TORCH = ("<torch/", "<ATen/", "<c10/", "<caffe2/")
_GRPC = ("<grpc", "<grpcpp/")

# Folders of worker/, from what is included to what includes.
_LAYERS = [
    {"absent_error.h", "batch.h", "errors.h", "no_cuda.h"},
    {"data", "kernels", "memory", "model", "parallel"},
    {"checkpoint", "generate", "objectives", "optim", "planner", "rewards"},
    {"inspect", "trainer"},
]
# Programs of their own, which speak gRPC and link no LibTorch.
_WITH_GRPC = ("worker/agent/", "worker/reward_calls/")
_OF_PROGRAMS = tuple('"' + folder for folder in _WITH_GRPC)
_LAYER_OF = {folder: layer for layer, folders in enumerate(_LAYERS) for folder in folders}

# (files under, includes that begin with, why not). Quoted includes begin with '"', others with '<'.
_FORBIDDEN_INCLUDES = [
    (
        (
            "server/",
            "client/",
            "worker/agent/",
            "worker/reward_calls/",
            "worker/rewards/",
            "proto/",
        ),
        _TORCH,
        "the control plane links no LibTorch",
    ),
    (
        ("server/",),
        ('"client/', '"worker/'),
        "the coordinator includes nothing of clients or workers",
    ),
    (("client/",), ('"worker/', '"server/'), "clients speak to the service by its protos only"),
    (
        ("worker/agent/",),
        ('"server/', '"client/'),
        "the agent speaks to the coordinator by its protos only",
    ),
    (
        ("server/scheduler/",),
        (*_GRPC, "<SQLiteCpp/", "<sqlite3", "<fstream"),
        "the scheduler does no I/O",
    ),
    (
        ("proto/spec/",),
        (*_GRPC, '"server/', '"client/', '"worker/'),
        "the rules link protobuf only",
    ),
    (
        ("",),
        ("<torch/torch.h", "<torch/all.h", "<torch/extension.h"),
        "include per-operator headers",
    ),
]


def includes(tree: Tree, path: str) -> Iterator[tuple[int, str]]:
    for match in _INCLUDE.finditer(tree.text(path)):
        yield line_of(tree.text(path), match.start()), match["path"]


def _folder(path: str) -> str:
    """worker/model/head.h -> model; worker/batch.h -> batch.h"""
    return path.split("/")[1]


def check_includes(tree: Tree) -> Iterator[Finding]:
    for path in tree.matching(*CXX):
        for line, included in includes(tree, path):
            for folders, prefixes, why in _FORBIDDEN_INCLUDES:
                if path.startswith(folders) and included.startswith(prefixes):
                    yield Finding(path, line, "include", f"{included[1:]}: {why}")


def _is_engine(path: str) -> bool:
    return path.startswith("worker/") and not path.startswith(_WITH_GRPC)


def check_engine_layers(tree: Tree) -> Iterator[Finding]:
    """Includes inside worker/ point one way; folders of one layer do not include in circles."""
    edges: dict[str, dict[str, tuple[str, int]]] = {}
    for path in filter(_is_engine, tree.matching(*CXX)):
        own = _folder(path)
        for line, included in includes(tree, path):
            if included.startswith((*_GRPC, '"server/', '"client/', *_OF_PROGRAMS)):
                yield Finding(
                    path, line, "layer", f"{included[1:]}: the engine knows no gRPC and no service"
                )
            if not included.startswith('"worker/') or not _is_engine(included[1:]):
                continue
            other = _folder(included[1:])
            if own not in _LAYER_OF or other not in _LAYER_OF:
                unknown = own if own not in _LAYER_OF else other
                yield Finding(
                    path, line, "layer", f"worker/{unknown} has no layer in tests/tidy/rules_cxx.py"
                )
            elif _LAYER_OF[other] > _LAYER_OF[own]:
                yield Finding(
                    path,
                    line,
                    "layer",
                    f"worker/{own} is below worker/{other} and may not include it",
                )
            elif other != own:
                edges.setdefault(own, {}).setdefault(other, (path, line))
    yield from _cycles(edges)


def _cycles(edges: dict[str, dict[str, tuple[str, int]]]) -> Iterator[Finding]:
    for own, others in edges.items():
        for other, (path, line) in others.items():
            if own in _reachable(edges, other):
                yield Finding(
                    path, line, "layer", f"worker/{own} and worker/{other} include each other"
                )


def _reachable(edges: dict[str, dict[str, tuple[str, int]]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        folder = waiting.pop()
        if folder not in seen:
            seen.add(folder)
            waiting.extend(edges.get(folder, {}))
    return seen
