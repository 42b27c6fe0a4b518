"""What a call can fail with: one class per google.rpc.ErrorInfo reason, each with one gRPC status.

Engines raise these, serving.guard ends calls with `to_status`, callers get them back by
`from_rpc_error`.
"""

from contextlib import suppress
from typing import ClassVar, Final, Self

import grpc

DOMAIN: Final = "domino-serve"
# Bytes; a status travels in headers, of which some clients take 8 KiB: once with three characters
# for each byte that is not ASCII, once more in base64.
_MAX_MESSAGE = 1000


class StartError(Exception):
    """The process cannot start; shown as one line, exit code 1."""


class CheckpointError(StartError):
    """A checkpoint cannot be used; the message names the file, field or tensor and the remedy."""


class ServingError(Exception):
    """A call failed. `fields` names the attributes that travel as ErrorInfo metadata."""

    code: ClassVar[grpc.StatusCode]
    reason: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def metadata(self) -> dict[str, str]:
        return {name: str(getattr(self, name)) for name in self.fields}

    @classmethod
    def restore(cls, message: str, metadata: dict[str, str], retry_after_s: float | None) -> Self:
        """The error as the other side raised it; a field it did not send is empty."""
        error = cls.__new__(cls)
        ServingError.__init__(error, message, retry_after_s)
        for name in cls.fields:
            setattr(error, name, metadata.get(name, ""))
        return error


class BadRequest(ServingError):
    """A field of the request cannot be honoured; trying again cannot help."""

    code = grpc.StatusCode.INVALID_ARGUMENT
    reason = "INVALID_REQUEST"
    fields = ("field",)

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class Mismatch(ServingError):
    """Two services hold models that do not belong together."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "MODEL_MISMATCH"
    fields = ("field", "expected", "actual")

    def __init__(self, field: str, expected: object, actual: object, remedy: str) -> None:
        super().__init__(f"{field}: expected {expected}, got {actual}; {remedy}")
        self.field, self.expected, self.actual = field, str(expected), str(actual)


class ContractMismatch(ServingError):
    """Two services speak different versions of the contract."""

    code = grpc.StatusCode.FAILED_PRECONDITION
    reason = "CONTRACT_VERSION"
    fields = ("expected", "actual")

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"contract version: expected {expected}, got {actual}; update the older")
        self.expected, self.actual = str(expected), str(actual)


class Overloaded(ServingError):
    """Everything is taken; waiting helps."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "CAPACITY"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message, retry_after_s)


class Draining(ServingError):
    """The process is ending and takes nothing new; another replica or a later try helps."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "DRAINING"

    def __init__(self, message: str = "the service is shutting down") -> None:
        super().__init__(message, retry_after_s=1.0)


class PeerUnavailable(ServingError):
    """A service could not be reached or went away during the call."""

    code = grpc.StatusCode.UNAVAILABLE
    reason = "PEER_UNAVAILABLE"
    fields = ("peer",)

    def __init__(self, peer: str, message: str) -> None:
        super().__init__(f"{peer}: {message}", retry_after_s=1.0)
        self.peer = peer


class DraftUnavailable(PeerUnavailable):
    """The draft service is away; output is unaffected, requests run plain."""

    reason = "DRAFT_UNAVAILABLE"


class Unauthenticated(ServingError):
    """The caller did not say who it is, or not convincingly."""

    code = grpc.StatusCode.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class PermissionDenied(ServingError):
    """The caller is known and may not do this."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class DeadlineExceeded(ServingError):
    """The caller's deadline passed first."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class InternalError(ServingError):
    """A bug or fault in the service; its log has the details."""

    code = grpc.StatusCode.INTERNAL
    reason = "INTERNAL"

    def __init__(self, message: str = "internal error; the service's log has the details") -> None:
        super().__init__(message)


def error_classes() -> dict[str, type[ServingError]]:
    """Every concrete error by its reason."""
    found: dict[str, type[ServingError]] = {}
    pending: list[type[ServingError]] = ServingError.__subclasses__()
    while pending:
        cls = pending.pop()
        found[cls.reason] = cls
        pending += cls.__subclasses__()
    return found


def to_status(error: ServingError) -> grpc.Status:
    """Status with ErrorInfo, and RetryInfo where waiting helps, in the trailers."""
    from google.protobuf.any_pb2 import Any
    from google.protobuf.duration_pb2 import Duration
    from google.rpc import error_details_pb2, status_pb2
    from grpc_status import rpc_status

    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=error.metadata)
    details = [Any()]
    details[0].Pack(info)
    if error.retry_after_s is not None:
        delay = Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        details.append(Any())
        details[1].Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(
        code=error.code.value[0],
        message=error.message.encode(errors="replace")[:_MAX_MESSAGE].decode(errors="ignore"),
        details=details,
    )
    made: grpc.Status = rpc_status.to_status(status)
    return made


def from_rpc_error(error: grpc.RpcError, peer: str = "service") -> ServingError:
    """The ServingError the callee raised, or the nearest one when gRPC itself failed.

    peer: name of the callee, for PeerUnavailable. Works for sync and aio errors alike.
    """
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    info, retry_after_s = error_details_pb2.ErrorInfo(), None
    status = None
    with suppress(ValueError):  # trailers that contradict the status are no details
        status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        retry = error_details_pb2.RetryInfo()
        detail.Unpack(info)
        if detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToMilliseconds() / 1000
    known = error_classes().get(info.reason) if info.domain == DOMAIN else None
    if status and known:
        return known.restore(status.message, dict(info.metadata), retry_after_s)
    return _from_code(error, peer)


def _from_code(error: grpc.RpcError, peer: str) -> ServingError:
    code, message = error.code(), error.details() or "no details"
    match code:
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return PeerUnavailable(peer, message)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(f"{peer}: {message}")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(f"{peer}: {message}")
        case grpc.StatusCode.INVALID_ARGUMENT:
            return BadRequest("request", message)
        case grpc.StatusCode.UNAUTHENTICATED:
            return Unauthenticated(f"{peer}: {message}")
        case grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDenied(f"{peer}: {message}")
        case _:
            return InternalError(f"{peer}: {code.name}: {message}")
