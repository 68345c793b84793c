"""Inputs of tessera-trainer for ranks that are started by hand, on one machine."""

import json
import pathlib
import socket


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write_inputs(spec, world, directory, job_id):
    """rankN.json of each rank; returns their paths."""
    port = free_port()
    paths = []
    for rank in range(world):
        contents = {
            "spec": spec,
            "job_id": job_id,
            "attempt": 1,
            "rank": rank,
            "local_rank": rank,
            "local_world_size": world,
            "device_index": rank,
            "rendezvous": {"address": "127.0.0.1", "port": port},
        }
        paths.append(pathlib.Path(directory) / f"rank{rank}.json")
        paths[-1].write_text(json.dumps(contents))
    return paths
