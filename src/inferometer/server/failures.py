"""How a request can fail, and what its sender is told: never anything of what was sent."""

from __future__ import annotations

from typing import Any, Literal

Kind = Literal[
    "validation",
    "overloaded",
    "generation",
    "incomplete_generation",
    "healthcheck",
    "authentication",
    "not_found",
    "method_not_allowed",
    "payload_too_large",
    "unsupported_media_type",
    "timeout",
    "internal",
]
"""`error_type` of text-generation-inference, and of what it answers without one."""


class ApiError(Exception):
    """A failure with its HTTP status. `param` names the parameter at fault, `headers` go with the response. `code`: OpenAI's word for
    what is wrong, where it has one.

    The message is for the sender: one line, with no text of a prompt.
    """

    def __init__(
        self,
        status: int,
        kind: Kind,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind: Kind = kind
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}


class ClientGoneError(Exception):
    """The client has closed its connection: nobody is left to answer."""


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """The request breaks a rule."""
    return ApiError(422, "validation", message, param=param, code=code)


def overloaded() -> ApiError:
    """There is no permit left."""
    return ApiError(429, "overloaded", "Model is overloaded", headers={"Retry-After": "1"})


def draining() -> ApiError:
    """The server is ending."""
    return ApiError(503, "overloaded", "The server is shutting down", headers={"Connection": "close"})


def cut_off() -> ApiError:
    """The server ended before the request did."""
    return ApiError(503, "incomplete_generation", "The server was shut down before the generation was complete")


def unhealthy() -> ApiError:
    """The engine is dead or stuck."""
    return ApiError(503, "healthcheck", "unhealthy")


def failed() -> ApiError:
    """The engine lost the request."""
    return ApiError(424, "generation", "Request failed during generation: the step it ran in failed")


def waited_too_long(seconds: float) -> ApiError:
    """The request's turn did not come in time."""
    return ApiError(503, "overloaded", f"The request waited {seconds:g} seconds in the queue and its turn did not come")


def is_openai(path: str) -> bool:
    """Whether a path speaks the OpenAI dialect."""
    return path.startswith("/v1/")


def status_of(error: ApiError, path: str) -> int:
    """The HTTP status in the dialect of `path`: OpenAI calls a broken rule 400."""
    return 400 if error.status == 422 and is_openai(path) else error.status


def body_of(error: ApiError, path: str) -> dict[str, Any]:
    """The JSON body in the dialect of `path`."""
    if not is_openai(path):
        return {"error": error.message, "error_type": error.kind}
    kinds: dict[str, str] = {
        "validation": "invalid_request_error",
        "authentication": "authentication_error",
        "overloaded": "overloaded_error",
    }
    kind = kinds.get(error.kind, "invalid_request_error" if error.status < 424 else "server_error")
    code = "invalid_api_key" if error.kind == "authentication" else error.code
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": code}}
