"""The service, from a program that waits for its answers."""

import os
import threading
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import grpc
from google.protobuf.message import Message

from tessera import requests
from tessera.connection import Connection, Turns
from tessera.errors import TRANSIENT, RefusedError, TesseraError, from_rpc
from tessera.requests import AnyJob, Chat, Method
from tessera.spec import State, is_terminal
from tessera.v1.coordinator_pb2 import (
    CancelJobRequest,
    Event,
    GetJobRequest,
    Job,
    ListNodesRequest,
    Node,
    PlanJobResponse,
    RecordCollectivesRequest,
    WatchJobRequest,
)
from tessera.v1.generate_pb2 import GenerateReply

# Within the class, list is a method.
Jobs = list[Job]
Nodes = list[Node]
Completions = list[str]


class Client:
    """All methods may be called from any thread. Errors are those of tessera.errors.

    Where the service is and what is said to be let in: see Connection. `patience`: seconds that a
    call is made again while the service cannot be reached.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        certificate_file: str | os.PathLike[str] | None = None,
        private_key_file: str | os.PathLike[str] | None = None,
        patience: float = 60,
    ) -> None:
        self._connection = Connection(address, token, ca_file, certificate_file, private_key_file)
        self._patience = patience
        self._turns = Turns(self._connection.channels())
        self._closed = threading.Event()

    @property
    def address(self) -> str:
        return self._connection.address or ""

    def close(self) -> None:
        """Ends all calls. The client is of no use afterwards."""
        self._closed.set()
        for channel in self._turns.channels:
            channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def submit(
        self, job: AnyJob, *, request_id: str | None = None, validate_only: bool = False
    ) -> Job:
        """Stores a job: a path of a job file, a dict as a job file nests it, or a JobSpec.

        All attempts carry the same request id, by default a random one: the job exists once,
        however often they are made. With validate_only it is checked and not stored; its id is
        empty.
        """
        request = requests.submit_request(job, request_id, validate_only)
        return self._call(requests.SUBMIT, request).job

    def get(self, job: str) -> Job:
        """By id, or by name where only one unfinished job has it."""
        return self._call(requests.GET, GetJobRequest(id=job)).job

    def list(self, states: Iterable["State | str"] = (), limit: int = 50) -> Jobs:
        """At most `limit` jobs, newest first; only those in one of `states`, if any."""
        request = requests.list_request(states, limit)
        jobs: Jobs = []
        while True:
            page = self._call(requests.LIST, request)
            jobs.extend(page.jobs)
            if len(jobs) >= limit or not page.next_page_token:
                return jobs[:limit]
            request.page_token = page.next_page_token

    def cancel(self, job: str) -> Job:
        """Asks a job to stop. It is CANCELLING until its processes are gone."""
        return self._call(requests.CANCEL, CancelJobRequest(id=job)).job

    def trace(
        self, job: str, *, steps: int = 1, ranks: Iterable[int] = (), first_step: int = 0
    ) -> int:
        """Has ranks of a running job write Chrome traces of steps; the step it was asked at.

        From `first_step` on, or each rank's next. `trace` events of watch() tell of the files.
        """
        request = requests.trace_request(job, steps, ranks, first_step)
        return self._call(requests.TRACE, request).step

    def record_collectives(self, job: str) -> None:
        """Has ranks of a running job tell what they exchanged last.

        `collectives` events of watch() are the answers; a rank that is stopped gives none.
        """
        self._call(requests.RECORD_COLLECTIVES, RecordCollectivesRequest(id=job))

    def nodes(self) -> Nodes:
        return [*self._call(requests.NODES, ListNodesRequest()).nodes]

    def plan(
        self,
        job: AnyJob,
        *,
        world_size: int | None = None,
        device: str | None = None,
        device_memory: str | None = None,
    ) -> PlanJobResponse:
        """What a job will need, and what would make it smaller; nothing is stored."""
        request = requests.plan_request(job, world_size, device, device_memory)
        return self._call(requests.PLAN, request)

    def watch(self, job: str, *, start_revision: int = 0, follow: bool = True) -> Iterator[Event]:
        """The events of a job, stored ones first, each once, until its last one.

        A connection that breaks is made again, and goes on after the last event: nothing is lost
        or seen twice, also where the service starts anew. With follow=False it ends after those
        that are stored. Closing the iterator ends the call.
        """
        # A name becomes an id, and a job that is not there is told at once.
        request = WatchJobRequest(
            id=self.get(job).id, start_revision=start_revision, no_follow=not follow
        )
        retry = _Retry(self)
        while True:
            channel = self._turns.channel()
            stream = self._stream(channel, requests.WATCH, request)
            began = time.monotonic()
            try:
                for response in stream:
                    event = response.event
                    # A service that repeats itself must not make a watcher do so.
                    if event.revision >= request.start_revision:
                        request.start_revision = event.revision + 1
                        retry.succeeded()
                        yield event
                return
            except grpc.RpcError as error:
                # It may be quiet for hours before it breaks: patience counts from then on.
                if time.monotonic() - began >= requests.LONGEST_SILENCE:
                    retry.succeeded()
                retry.failed(channel, error)
            finally:
                stream.cancel()

    def wait(self, job: str) -> Job:
        """The job once it has ended."""
        for _ in self.watch(job):
            pass
        ended = self.get(job)
        if not is_terminal(ended.state):
            raise TesseraError(f"the events of job {ended.id} stop before its end")
        return ended

    def generate(
        self,
        prompts: Iterable[str | Chat],
        *,
        model: str | os.PathLike[str] | None = None,
        job: str | None = None,
        **options: Any,
    ) -> Iterator[GenerateReply]:
        """Completions as they are made, of a model's directory or of what a job has left.

        A prompt is a text, or a list of {"role": ..., "content": ...}. `options` are the fields of
        Sampling, device, dtype, tokenizer and logprobs. What was made is not made again: a
        connection that breaks raises UnreachableError. Closing the iterator ends the call.
        """
        request = requests.generate_request(prompts, model, job, options)
        for left in reversed(range(len(self._turns.channels))):
            channel = self._turns.channel()
            stream = self._stream(channel, requests.GENERATE, request)
            has_begun = False
            try:
                for reply in stream:
                    has_begun = True
                    if reply.HasField("failure"):
                        raise RefusedError(reply.failure.message, reason="GENERATION_FAILED")
                    yield reply
                return
            except grpc.RpcError as error:
                if has_begun or left == 0 or not self._turns.turn(channel, error):
                    raise from_rpc(error, self.address) from error
            finally:
                stream.cancel()

    def complete(self, prompts: Iterable[str | Chat], **options: Any) -> Completions:
        """What generate() makes, as whole texts: all completions of the first prompt, and so on."""
        texts = requests.Texts()
        for reply in self.generate(prompts, **options):
            texts.add(reply)
        return texts.in_order()

    def _call(self, method: Method, request: Message) -> Any:
        retry = _Retry(self)
        while True:
            channel = self._turns.channel()
            call = channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            try:
                return call(request, timeout=method.seconds, metadata=self._connection.metadata())
            except grpc.RpcError as error:
                retry.failed(channel, error)

    def _stream(self, channel: grpc.Channel, method: Method, request: Message) -> Any:
        call = channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return call(request, metadata=self._connection.metadata())


class _Retry:
    """Waits between attempts, until patience is at its end. It starts again with every success."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.succeeded()

    def succeeded(self) -> None:
        self._delay = requests.FIRST_DELAY
        self._give_up: float | None = None
        self._num_elsewhere = 0

    def failed(self, channel: grpc.Channel, error: grpc.RpcError) -> None:
        """Returns when it is time for the next attempt. Raises where there is to be none."""
        turns = self._client._turns
        if turns.turn(channel, error):
            self._num_elsewhere += 1
            # All are asked before there is a pause.
            if self._num_elsewhere % len(turns.channels) != 0:
                return
        now = time.monotonic()
        if self._give_up is None:
            self._give_up = now + self._client._patience
        closed = self._client._closed
        if error.code() not in TRANSIENT or now >= self._give_up or closed.is_set():
            raise from_rpc(error, self._client.address) from error
        closed.wait(self._delay)
        self._delay = min(2 * self._delay, requests.LAST_DELAY)
