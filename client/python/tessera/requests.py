"""What both clients send, and how long they try."""

import os
import pathlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import Message

from tessera.spec import State, as_spec
from tessera.v1 import coordinator_pb2 as pb
from tessera.v1.generate_pb2 import ChatMessage, GeneratePrompt, GenerateReply, GenerateRequest
from tessera.v1.job_pb2 import JobSpec
from tessera.v1.plan_pb2 import PlanRequest

AnyJob = Mapping[str, Any] | JobSpec | str | os.PathLike[str]
Chat = Sequence[Mapping[str, str]]

CALL_SECONDS = 30.0
# Of calls that an agent's machine works for: a check and a plan, of up to a minute each.
LONG_CALL_SECONDS = 150.0
FIRST_DELAY = 0.05
LAST_DELAY = 1.0
PAGE_SIZE = 200
# Whoever is not there any more is given up before this: 5 s for a connection, or 5 s until a ping
# is due and 5 s for its answer. A watch that lasted longer was well.
LONGEST_SILENCE = 16.0


class Method(NamedTuple):
    path: str
    request: type[Message]
    response: type[Message]
    seconds: float | None = CALL_SECONDS


def _method(
    name: str, request: type[Message], response: type[Message], seconds: float | None = CALL_SECONDS
) -> Method:
    return Method(f"/tessera.v1.Coordinator/{name}", request, response, seconds)


SUBMIT = _method("SubmitJob", pb.SubmitJobRequest, pb.SubmitJobResponse, LONG_CALL_SECONDS)
GET = _method("GetJob", pb.GetJobRequest, pb.GetJobResponse)
LIST = _method("ListJobs", pb.ListJobsRequest, pb.ListJobsResponse)
CANCEL = _method("CancelJob", pb.CancelJobRequest, pb.CancelJobResponse)
NODES = _method("ListNodes", pb.ListNodesRequest, pb.ListNodesResponse)
PLAN = _method("PlanJob", pb.PlanJobRequest, pb.PlanJobResponse, LONG_CALL_SECONDS)
TRACE = _method("TraceJob", pb.TraceJobRequest, pb.TraceJobResponse)
RECORD_COLLECTIVES = _method(
    "RecordCollectives", pb.RecordCollectivesRequest, pb.RecordCollectivesResponse
)
WATCH = _method("WatchJob", pb.WatchJobRequest, pb.WatchJobResponse, None)
GENERATE = _method("Generate", GenerateRequest, GenerateReply, None)


def submit_request(job: AnyJob, request_id: str | None, validate_only: bool) -> pb.SubmitJobRequest:
    return pb.SubmitJobRequest(
        spec=as_spec(job), request_id=request_id or uuid.uuid4().hex, validate_only=validate_only
    )


def list_request(states: Iterable["State | str"], limit: int) -> pb.ListJobsRequest:
    """`states` as numbers or names, in upper or lower case."""
    numbers = [State.Value(s.upper()) if isinstance(s, str) else s for s in states]
    return pb.ListJobsRequest(page_size=min(limit, PAGE_SIZE), states=numbers)


def trace_request(
    job: str, steps: int, ranks: Iterable[int], first_step: int
) -> pb.TraceJobRequest:
    return pb.TraceJobRequest(id=job, num_steps=steps, ranks=ranks, first_step=first_step)


def plan_request(
    job: AnyJob, world_size: int | None, device: str | None, device_memory: str | None
) -> pb.PlanJobRequest:
    plan = PlanRequest(
        spec=as_spec(job), world_size=world_size, device=device, device_memory=device_memory
    )
    return pb.PlanJobRequest(plan=plan)


def generate_request(
    prompts: Iterable[str | Chat],
    model: str | os.PathLike[str] | None,
    job: str | None,
    options: Mapping[str, Any],
) -> GenerateRequest:
    """`options` are fields of Sampling, or of GenerateRequest itself: device, dtype, logprobs."""
    if (model is None) == (job is None):
        raise ValueError("exactly one of model and job must be given")
    request = GenerateRequest(job=job or "")
    if model is not None:
        request.model = str(pathlib.Path(model).absolute())
    for prompt in [prompts] if isinstance(prompts, str) else prompts:
        if isinstance(prompt, str):
            request.prompts.append(GeneratePrompt(text=prompt))
        else:
            entry = request.prompts.add()
            entry.conversation.messages.extend(ChatMessage(**message) for message in prompt)
    for name, value in options.items():
        target = request if name in GenerateRequest.DESCRIPTOR.fields_by_name else request.sampling
        if name not in target.DESCRIPTOR.fields_by_name:
            raise TypeError(f"{name} is no option of generate()")
        if isinstance(value, list | tuple):
            getattr(target, name).extend(value)
        else:
            setattr(target, name, value)
    return request


class Texts:
    """Completions as they grow, by (prompt, completion)."""

    def __init__(self) -> None:
        self.texts: dict[tuple[int, int], str] = {}

    def add(self, reply: GenerateReply) -> None:
        if reply.HasField("text"):
            key = (reply.text.prompt, reply.text.completion)
            self.texts[key] = self.texts.get(key, "") + reply.text.text
        elif reply.HasField("end"):
            self.texts.setdefault((reply.end.prompt, reply.end.completion), "")

    def in_order(self) -> list[str]:
        return [self.texts[key] for key in sorted(self.texts)]
