"""The service, from a program of asyncio. The methods are those of tessera.Client."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
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


class AsyncClient:
    """Make it where an event loop runs. See Client for what it takes and what it does."""

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
        self._turns = Turns(self._connection.aio_channels())

    @property
    def address(self) -> str:
        return self._connection.address or ""

    async def close(self) -> None:
        for channel in self._turns.channels:
            await channel.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def submit(
        self, job: AnyJob, *, request_id: str | None = None, validate_only: bool = False
    ) -> Job:
        request = requests.submit_request(job, request_id, validate_only)
        return (await self._call(requests.SUBMIT, request)).job

    async def get(self, job: str) -> Job:
        return (await self._call(requests.GET, GetJobRequest(id=job))).job

    async def list(self, states: Iterable["State | str"] = (), limit: int = 50) -> Jobs:
        request = requests.list_request(states, limit)
        jobs: Jobs = []
        while True:
            page = await self._call(requests.LIST, request)
            jobs.extend(page.jobs)
            if len(jobs) >= limit or not page.next_page_token:
                return jobs[:limit]
            request.page_token = page.next_page_token

    async def cancel(self, job: str) -> Job:
        return (await self._call(requests.CANCEL, CancelJobRequest(id=job))).job

    async def trace(
        self, job: str, *, steps: int = 1, ranks: Iterable[int] = (), first_step: int = 0
    ) -> int:
        request = requests.trace_request(job, steps, ranks, first_step)
        return (await self._call(requests.TRACE, request)).step

    async def record_collectives(self, job: str) -> None:
        await self._call(requests.RECORD_COLLECTIVES, RecordCollectivesRequest(id=job))

    async def nodes(self) -> Nodes:
        return [*(await self._call(requests.NODES, ListNodesRequest())).nodes]

    async def plan(
        self,
        job: AnyJob,
        *,
        world_size: int | None = None,
        device: str | None = None,
        device_memory: str | None = None,
    ) -> PlanJobResponse:
        request = requests.plan_request(job, world_size, device, device_memory)
        return await self._call(requests.PLAN, request)

    async def watch(
        self, job: str, *, start_revision: int = 0, follow: bool = True
    ) -> AsyncIterator[Event]:
        request = WatchJobRequest(
            id=(await self.get(job)).id, start_revision=start_revision, no_follow=not follow
        )
        retry = _Retry(self)
        while True:
            channel = self._turns.channel()
            stream = self._stream(channel, requests.WATCH, request)
            began = time.monotonic()
            try:
                async for response in stream:
                    event = response.event
                    if event.revision >= request.start_revision:
                        request.start_revision = event.revision + 1
                        retry.succeeded()
                        yield event
                return
            except grpc.RpcError as error:
                if time.monotonic() - began >= requests.LONGEST_SILENCE:
                    retry.succeeded()
                await retry.failed(channel, error)
            finally:
                stream.cancel()

    async def wait(self, job: str) -> Job:
        async for _ in self.watch(job):
            pass
        ended = await self.get(job)
        if not is_terminal(ended.state):
            raise TesseraError(f"the events of job {ended.id} stop before its end")
        return ended

    async def generate(
        self,
        prompts: Iterable[str | Chat],
        *,
        model: str | os.PathLike[str] | None = None,
        job: str | None = None,
        **options: Any,
    ) -> AsyncIterator[GenerateReply]:
        request = requests.generate_request(prompts, model, job, options)
        for left in reversed(range(len(self._turns.channels))):
            channel = self._turns.channel()
            stream = self._stream(channel, requests.GENERATE, request)
            has_begun = False
            try:
                async for reply in stream:
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

    async def complete(self, prompts: Iterable[str | Chat], **options: Any) -> Completions:
        texts = requests.Texts()
        async for reply in self.generate(prompts, **options):
            texts.add(reply)
        return texts.in_order()

    async def _call(self, method: Method, request: Message) -> Any:
        retry = _Retry(self)
        while True:
            channel = self._turns.channel()
            call = channel.unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
            try:
                return await call(
                    request, timeout=method.seconds, metadata=self._connection.metadata()
                )
            except grpc.RpcError as error:
                await retry.failed(channel, error)

    def _stream(self, channel: grpc.aio.Channel, method: Method, request: Message) -> Any:
        call = channel.unary_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return call(request, metadata=self._connection.metadata())


class _Retry:
    """Waits between attempts, until patience is at its end. It starts again with every success."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.succeeded()

    def succeeded(self) -> None:
        self._delay = requests.FIRST_DELAY
        self._give_up: float | None = None
        self._num_elsewhere = 0

    async def failed(self, channel: grpc.aio.Channel, error: grpc.RpcError) -> None:
        """Returns when it is time for the next attempt. Raises where there is to be none."""
        turns = self._client._turns
        if turns.turn(channel, error):
            self._num_elsewhere += 1
            # All are asked before there is a pause.
            if self._num_elsewhere % len(turns.channels) != 0:
                return
        now = asyncio.get_running_loop().time()
        if self._give_up is None:
            self._give_up = now + self._client._patience
        if error.code() not in TRANSIENT or now >= self._give_up:
            raise from_rpc(error, self._client.address) from error
        await asyncio.sleep(self._delay)
        self._delay = min(2 * self._delay, requests.LAST_DELAY)
