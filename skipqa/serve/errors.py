"""Errors as clients of OpenAI's API expect them: one form, fixed words, no address and no path.

Enters: any exception of a route. Leaves: a response with `{"error": {message, type, param, code}}`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from skipqa.errors import UserError
from skipqa.serve import engine
from skipqa.serve.index_upload import StoreError

log = logging.getLogger("skipqa.serve")
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}

FIELD = re.compile("[a-z_]+|[0-9]+")  # others are names of types
INNER = ("body", "query", "path", "str", "int", "float", "bool")
STORE = {  # statuses of what the store refuses
    "unknown_index": 404,
    "index_busy": 409,
    "index_not_ready": 409,
    "file_too_large": 413,
    "too_many_files": 413,
    "quota_exceeded": 507,
    "disk_full": 507,
}


class ApiError(Exception):
    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.headers = dict(headers or {})

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, headers=self.headers)

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(
            self.status, "server_error" if self.status >= 500 else "invalid_request_error"
        )
        return {
            "error": {
                "message": self.message,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }


def bad_request(code: str, message: str, param: str | None = None) -> ApiError:
    return ApiError(400, code, message, param)


def too_large(limit: int) -> ApiError:
    return ApiError(413, "request_too_large", f"the request is larger than {limit >> 20} MiB")


def busy(seconds: int) -> ApiError:
    return ApiError(
        429,
        "server_busy",
        f"the server has as many questions as it takes on: try again in {seconds} s",
        headers={"Retry-After": str(seconds)},
    )


def unauthorized() -> ApiError:
    return ApiError(
        401,
        "invalid_api_key",
        "a valid API key is needed: send it as 'Authorization: Bearer KEY'",
        headers={"WWW-Authenticate": "Bearer"},
    )


def internal() -> ApiError:
    return ApiError(500, "internal_error", "the server could not answer; its log says why")


def translated(error: Exception) -> ApiError:
    """What a client is told of an exception."""
    match error:
        case ApiError():
            return error
        case engine.Busy():
            return busy(error.seconds)
        case engine.Loading():
            message = "the server is reading its models or stopping: try again"
            return ApiError(503, "unavailable", message, headers={"Retry-After": "5"})
        case engine.TimedOut():
            return ApiError(504, "timeout", "the question took longer than it may")
        case engine.Lost():
            return ApiError(
                503, "worker_lost", "the process that had the question ended: try again"
            )
        case StoreError():
            return ApiError(STORE.get(error.code, 400), error.code, str(error))
        case engine.Refused():
            code = "invalid_image" if error.param == "photo" else "invalid_value"
            return bad_request(code, " ".join(str(error).split()), error.param)
        case UserError():
            return bad_request("invalid_value", " ".join(str(error).split()))
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return _plain(error)
    return internal()


def _invalid(error: RequestValidationError) -> ApiError:
    """The first thing that is wrong, without the value that was sent."""
    first = error.errors()[0]
    place = [part for part in map(str, first["loc"]) if FIELD.fullmatch(part) and part not in INNER]
    if first["type"] == "model_attributes_type" and not place:
        message = "the body is JSON, with Content-Type: application/json"
        return ApiError(415, "unsupported_media_type", message)
    if first["type"] == "json_invalid":
        return bad_request("invalid_json", "the body is not valid JSON")
    param = ".".join(place) or None
    message = first["msg"].removeprefix("Value error, ")
    return bad_request("invalid_value", f"{param or 'the request'}: {message}", param)


def _plain(error: HTTPException) -> ApiError:
    known = {
        404: ("not_found", "there is nothing at this address"),
        405: ("method_not_allowed", "this address takes another method"),
    }
    code, message = known.get(error.status_code, ("invalid_request", "the request cannot be read"))
    return ApiError(error.status_code, code, message, headers=dict(error.headers or {}))


def _methods(app: FastAPI, request: Request) -> list[str]:
    """All that an address takes: Starlette names those of its first route only."""

    def takes(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in app.routes)

    return [method for method in ("DELETE", "GET", "HEAD", "POST") if takes(method)]


def install(app: FastAPI) -> None:
    async def answer(request: Request, error: Exception) -> JSONResponse:
        told = translated(error)
        if told.status == 415 and "json" in request.headers.get("content-type", ""):
            told = bad_request("invalid_value", "the body has to be a JSON object")
        if told.status == 405:
            told.headers["Allow"] = ", ".join(_methods(app, request))
        if told.status >= 500 and told.code == "internal_error":
            log.error("a request failed", exc_info=error)
        return told.response()

    async def left(_: Request, __: Exception) -> Response:
        return Response(status_code=499)  # nobody reads it

    app.add_exception_handler(ClientDisconnect, left)
    kinds = (
        *(ApiError, UserError, RequestValidationError, HTTPException, Exception),
        *(engine.Busy, engine.Loading, engine.TimedOut, engine.Lost, engine.Refused, engine.Failed),
    )
    for kind in kinds:
        app.add_exception_handler(kind, answer)
