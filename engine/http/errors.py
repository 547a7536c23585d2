"""Errors as HTTP answers, in the shapes of OpenAI's and Anthropic's APIs."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import CapacityError, ContextOverflow, EngineError, RequestError

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {**_OPENAI_TYPES, 413: "request_too_large", 503: "overloaded_error"}
_RETRY_AFTER_S = "1"


class ApiError(Exception):
    """A request that is answered with an error. `param` names the member of the body that is to blame."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def headers(self) -> Mapping[str, str]:
        """What else the answer says. What was not read of a body is not worth reading."""
        if self.status in (408, 413):
            return {"Connection": "close"}
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": _RETRY_AFTER_S} if self.status in (429, 503) else {}


def invalid(param: str, problem: str) -> ApiError:
    """400: the member `param` of the body has this problem."""
    return ApiError(400, f"{param}: {problem}", param=param, code="invalid_value")


def of_engine(error: EngineError) -> ApiError:
    """How an error of the engine is answered."""
    match error:
        case ContextOverflow():
            return ApiError(400, str(error), param="messages", code="context_length_exceeded")
        case RequestError():
            return ApiError(400, str(error), code="invalid_value")
        case CapacityError():
            return ApiError(429, str(error), code="engine_busy")
        case _:
            return ApiError(503, str(error), code="engine_failed")


def openai_body(error: ApiError) -> dict[str, object]:
    """The body that OpenAI's clients read."""
    kind = _OPENAI_TYPES.get(error.status, "server_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def anthropic_body(error: ApiError) -> dict[str, object]:
    """The body that Anthropic's clients read."""
    kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}
