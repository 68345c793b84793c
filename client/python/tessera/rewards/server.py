"""A gRPC server of tessera.v1.RewardService over functions."""

import asyncio
import logging
import pathlib
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from tessera.rewards.functions import BadScoresError, Function, RewardFunction, registered
from tessera.v1.reward_pb2 import Score, ScoreRequest, ScoreResponse

log = logging.getLogger(__name__)

_MAX_REQUEST_BYTES = 1 << 30
# What calls that are under way get to end, once the server is told to.
_GRACE_SECONDS = 5
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_REQUEST_BYTES),
    # Two servers at one port would answer by turns.
    ("grpc.so_reuseport", 0),
)


def _named(functions: tuple[Function | RewardFunction, ...]) -> dict[str, RewardFunction]:
    if not functions:
        if not registered:
            raise ValueError("there is no function to serve: give one, or decorate it with @reward")
        return dict(registered)
    known = {entry.function: entry for entry in registered.values()}
    named: dict[str, RewardFunction] = {}
    for function in functions:
        entry = function if isinstance(function, RewardFunction) else known.get(function)
        entry = entry or RewardFunction(function)
        if entry.name in named:
            raise ValueError(f"there are two reward functions named {entry.name}")
        named[entry.name] = entry
    return named


class _Service:
    def __init__(self, functions: dict[str, RewardFunction], executor: ThreadPoolExecutor):
        self.functions = functions
        self.executor = executor

    def _function(self, name: str) -> RewardFunction | None:
        # A server of one function need not know what the job calls it.
        if len(self.functions) == 1:
            return next(iter(self.functions.values()))
        return self.functions.get(name)

    async def score(self, request: ScoreRequest, context: Any) -> ScoreResponse:
        function = self._function(request.reward_func)
        if function is None:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f'there is no function "{request.reward_func}", only {", ".join(self.functions)}',
            )
        try:
            scores = await function.score(request, self.executor)
        except BadScoresError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:
            # The job waits for a server that does better.
            log.exception("%s failed", function.name)
            await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")
        return ScoreResponse(scores=[Score(value=score) for score in scores])


def _handlers(service: _Service) -> grpc.GenericRpcHandler:
    score = grpc.unary_unary_rpc_method_handler(
        service.score,
        request_deserializer=ScoreRequest.FromString,
        response_serializer=ScoreResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler("tessera.v1.RewardService", {"Score": score})


def _listen(server: grpc.aio.Server, address: str, files: tuple[str | None, str | None]) -> str:
    """The address, with the port that 0 became."""
    certificate, private_key = files
    if (certificate is None) != (private_key is None):
        raise ValueError("certificate_file and private_key_file must be given together")
    if certificate is None:
        port = server.add_insecure_port(address)
    else:
        pair = tuple(pathlib.Path(file).read_bytes() for file in (private_key, certificate))
        port = server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    if address.startswith("unix:"):
        return address
    return f"{address.rpartition(':')[0]}:{port}"


async def serve_async(
    *functions: Function | RewardFunction,
    address: str = "127.0.0.1:50051",
    certificate_file: str | None = None,
    private_key_file: str | None = None,
    max_workers: int = 8,
    on_listening: Callable[[str], None] | None = None,
) -> None:
    """Serves until it is cancelled; see serve(). `on_listening` gets the address."""
    named = _named(functions)
    with ThreadPoolExecutor(max_workers) as executor:
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((_handlers(_Service(named, executor)),))
        listening = _listen(server, address, (certificate_file, private_key_file))
        await server.start()
        if on_listening is not None:
            on_listening(listening)
        try:
            await server.wait_for_termination()
        finally:
            await server.stop(_GRACE_SECONDS)


def serve(*functions: Function | RewardFunction, **options: Any) -> None:
    """Serves functions, by default all that are decorated with @reward, until SIGINT or SIGTERM.

    address: host:port, where port 0 is any that is free, or unix:///path.
    certificate_file, private_key_file: PEM; jobs then name who vouches for it as `ca_file`.
    max_workers: threads for functions that are not async.
    """

    def tell(listening: str) -> None:
        print(f"serving {', '.join(_named(functions))} at {listening}", flush=True)

    async def until_told() -> None:
        task = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            await serve_async(*functions, **{"on_listening": tell} | options)
        except asyncio.CancelledError:
            log.info("told to end")

    asyncio.run(until_told())
