"""Tessera from Python: submit jobs, follow them, ask about them, and try what they made.

    import tessera

    with tessera.Client() as client:
        job = client.submit("job.yaml")
        for event in client.watch(job.id):
            if event.HasField("step"):
                print(event.step.step, event.step.loss)
        print(client.get(job.id).state == tessera.State.SUCCEEDED)

`AsyncClient` has the same methods for asyncio. tessera.rewards serves reward functions.
"""

from tessera.aio import AsyncClient
from tessera.client import Client
from tessera.errors import (
    AlreadyExistsError,
    InvalidJobError,
    NotFoundError,
    PermissionDeniedError,
    RefusedError,
    TesseraError,
    UnauthenticatedError,
    UnreachableError,
    Violation,
)
from tessera.spec import State, is_terminal, load_job, make_spec
from tessera.v1.coordinator_pb2 import Event, Job, Node
from tessera.v1.job_pb2 import JobSpec

__version__ = "0.1.0"
__all__ = [
    "AlreadyExistsError",
    "AsyncClient",
    "Client",
    "Event",
    "InvalidJobError",
    "Job",
    "JobSpec",
    "Node",
    "NotFoundError",
    "PermissionDeniedError",
    "RefusedError",
    "State",
    "TesseraError",
    "UnauthenticatedError",
    "UnreachableError",
    "Violation",
    "is_terminal",
    "load_job",
    "make_spec",
]
