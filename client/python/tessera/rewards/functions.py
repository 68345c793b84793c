"""Functions that judge completions, with TRL's signature."""

import asyncio
import inspect
import json
import math
import numbers
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any, TypeVar

from google.protobuf.struct_pb2 import Struct, Value

from tessera.v1.reward_pb2 import CompletionToJudge, ScoreRequest

Scores = Sequence[float | None]
Function = Callable[..., Scores | Awaitable[Scores]]
F = TypeVar("F", bound=Function)

# Integers up to here are what a number of JSON says they are.
_MAX_EXACT = 2**53


class BadScoresError(ValueError):
    """What a function returned are no scores of what it was asked about."""


def _number_of(number: float) -> int | float:
    is_whole = number.is_integer() and abs(number) <= _MAX_EXACT
    return int(number) if is_whole else number


def _value_of(value: Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return record_of(value.struct_value)
    if kind == "list_value":
        return [_value_of(item) for item in value.list_value.values]
    if kind == "number_value":
        return _number_of(value.number_value)
    if kind in (None, "null_value"):
        return None
    return getattr(value, kind)


def record_of(record: Struct) -> dict[str, Any]:
    """A record as JSON has it. Numbers without a fraction are int."""
    return {name: _value_of(value) for name, value in record.fields.items()}


def _exact_record_of(completion: CompletionToJudge) -> dict[str, Any]:
    if not completion.HasField("record_json"):
        return record_of(completion.record)
    record: dict[str, Any] = json.loads(
        completion.record_json, parse_float=lambda text: _number_of(float(text))
    )
    return record


def arguments_of(request: ScoreRequest) -> dict[str, Any]:
    """What a function is called with: the request, and the records of its prompts by column."""
    asked = request.completions
    records = [_exact_record_of(completion) for completion in asked]
    names = {name for record in records for name in record}
    columns: dict[str, Any] = {name: [record.get(name) for record in records] for name in names}
    return columns | {
        "prompts": [completion.prompt for completion in asked],
        "completions": [completion.completion for completion in asked],
        "prompt_ids": [list(completion.prompt_ids) for completion in asked],
        "completion_ids": [list(completion.completion_ids) for completion in asked],
        "truncated": [completion.truncated for completion in asked],
        "step": request.step,
        "job_id": request.job_id,
    }


class RewardFunction:
    """A function and the name that jobs ask for it by.

    It gets those of `prompts`, `completions`, `prompt_ids`, `completion_ids`, `truncated` (lists
    with one entry a completion), `step`, `job_id`, and of the columns of the prompts' records that
    it has parameters for; all of them where it has `**columns`. It returns a score for each
    completion; None or NaN: it cannot be judged.
    """

    def __init__(self, function: Function, name: str | None = None):
        self.function = function
        self.name = name or function.__name__
        # Of an object that is called, its __call__.
        called = function if inspect.isroutine(function) else type(function).__call__
        self.is_async = inspect.iscoroutinefunction(called)
        parameters = inspect.signature(function).parameters.values()
        self.takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self.parameters = {p.name for p in parameters}

    async def score(self, request: ScoreRequest, executor: Executor) -> list[float | None]:
        """Raises BadScoresError, and what the function raises. One that is not async runs there."""
        arguments = arguments_of(request)
        if not self.takes_all:
            arguments = {k: v for k, v in arguments.items() if k in self.parameters}
        if self.is_async:
            scores = await self.function(**arguments)
        else:
            loop = asyncio.get_running_loop()
            scores = await loop.run_in_executor(executor, lambda: self.function(**arguments))
        return self._checked(scores, len(request.completions))

    def _checked(self, scores: Any, count: int) -> list[float | None]:
        try:
            rows = list(scores)
        except TypeError:
            raise BadScoresError(f"{self.name} returned {scores!r}, must return a list") from None
        if len(rows) != count:
            raise BadScoresError(
                f"{self.name} returned {len(rows)} scores for {count} completions, must return one "
                "for each"
            )
        return [self._checked_score(score) for score in rows]

    def _checked_score(self, score: Any) -> float | None:
        if score is None:
            return None
        if not isinstance(score, numbers.Real):
            # Scalars of arrays and tensors.
            score = score.item() if hasattr(score, "item") else score
        if not isinstance(score, numbers.Real) or math.isinf(score):
            raise BadScoresError(
                f"{self.name} returned the score {score!r}, must return finite numbers"
            )
        return None if math.isnan(score) else float(score)


registered: dict[str, RewardFunction] = {}


def reward(function: F | None = None, *, name: str | None = None) -> Any:
    """Decorates a function that serve() then serves, by its own name or another."""

    def register(decorated: F) -> F:
        entry = RewardFunction(decorated, name)
        if entry.name in registered:
            raise ValueError(f"there are two reward functions named {entry.name}")
        registered[entry.name] = entry
        return decorated

    return register if function is None else register(function)
