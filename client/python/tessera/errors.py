"""What calls fail with: one class for each thing that a caller would do about it."""

import dataclasses

import grpc
from google.rpc import error_details_pb2, status_pb2

_DETAILS = "grpc-status-details-bin"
# The same call may succeed later: the service was not there, or could not take it.
TRANSIENT = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    }
)


@dataclasses.dataclass(frozen=True)
class Violation:
    """A broken rule: `field` as a job file has it, `message` a whole sentence on it."""

    field: str
    message: str


class TesseraError(Exception):
    """Any answer that is none. `hint` says what to do, where that is known."""

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode | None = None,
        reason: str = "",
        violations: tuple[Violation, ...] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        # Of google.rpc.ErrorInfo: JOB_NOT_FOUND. Empty: none was given.
        self.reason = reason
        self.violations = violations
        self.hint = hint

    def __str__(self) -> str:
        lines = [violation.message for violation in self.violations] or [self.message]
        return "\n".join([*lines, f"hint: {self.hint}"] if self.hint else lines)


class InvalidJobError(TesseraError, ValueError):
    """The request breaks rules: `violations` has them all."""


class NotFoundError(TesseraError, LookupError):
    """There is no such job."""


class AlreadyExistsError(TesseraError):
    """The request id was used for another spec."""


class RefusedError(TesseraError):
    """The service understood, and will not: a job cannot fit, several jobs have the name."""


class UnauthenticatedError(TesseraError):
    """The service wants to know who asks."""


class PermissionDeniedError(TesseraError):
    """Who asks may not."""


class UnreachableError(TesseraError, ConnectionError):
    """The service is not there, or has no time; the same call may succeed later."""


_CLASSES = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidJobError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidJobError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.FAILED_PRECONDITION: RefusedError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
} | dict.fromkeys(TRANSIENT, UnreachableError)

_HINTS = {
    grpc.StatusCode.UNAUTHENTICATED: "give Client(token=...), or set TESSERA_TOKEN_FILE",
    grpc.StatusCode.NOT_FOUND: "Client.list() has the jobs that there are",
}


# Reasons of UNAVAILABLE that leave it open that another coordinator takes the call; "": it has not
# arrived.
_ELSEWHERE = frozenset({"", "STANDBY", "SHUTTING_DOWN", "STORE"})


def may_be_elsewhere(error: grpc.RpcError) -> bool:
    return error.code() == grpc.StatusCode.UNAVAILABLE and _details(error)[0] in _ELSEWHERE


def _details(error: grpc.RpcError) -> tuple[str, list[Violation]]:
    """The reason and the violations that the service sent along."""
    reason = ""
    violations: list[Violation] = []
    for key, value in error.trailing_metadata() or ():
        if key != _DETAILS:
            continue
        for detail in status_pb2.Status.FromString(value).details:
            info = error_details_pb2.ErrorInfo()
            request = error_details_pb2.BadRequest()
            if detail.Unpack(info):
                reason = info.reason
            elif detail.Unpack(request):
                violations += [Violation(v.field, v.description) for v in request.field_violations]
    return reason, violations


def from_rpc(error: grpc.RpcError, address: str) -> TesseraError:
    """The exception for what a call raised."""
    code: grpc.StatusCode = error.code()
    message = error.details() or code.name
    reason, violations = _details(error)
    hint = _HINTS.get(code, "")
    if code == grpc.StatusCode.UNAVAILABLE and not reason:
        message = f"cannot reach the service at {address} ({message})"
        hint = "`tessera up` starts one on this machine; `tessera doctor` says what is wrong"
    return _CLASSES.get(code, TesseraError)(
        message, code=code, reason=reason, violations=tuple(violations), hint=hint
    )
