"""POST /v1/chat/completions: the form that every client speaks.

Enters: a conversation. Leaves: the answer with its citations as the assistant's message, and next
to the usual fields `skip`, the whole pathway. The answer is decided as a whole, so a stream begins
when it is known, and every error is an HTTP status.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from skipqa import __version__
from skipqa.serve.conversation import asked
from skipqa.serve.errors import bad_request
from skipqa.serve.schemas import ChatReply, ChatRequest
from skipqa.serve.service import Served, Service, identifier

FINGERPRINT = f"skipqa-{__version__}"
EVENTS = "text/event-stream"


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post(
        "/v1/chat/completions",
        tags=["OpenAI"],
        responses={200: {"model": ChatReply, "content": {EVENTS: {}}}},
    )
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        """Answer the last question of a conversation about the last image in it."""
        check_supported(body.response_format, body.tool_choice)
        conversation = asked(body.messages, "messages")
        found = await service.ask_conversation(
            request, conversation, body.model, body.index, body.skip
        )
        stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
        served, reason = found.until(body.max_completion_tokens or body.max_tokens, stops)
        head = {
            "id": identifier("chatcmpl"),
            "created": int(time.time()),
            "model": body.model,
            "system_fingerprint": FINGERPRINT,
        }
        if body.stream:
            extra = body.stream_options is not None and bool(body.stream_options.include_usage)
            return StreamingResponse(_stream(served, reason, head, extra), media_type=EVENTS)
        return JSONResponse(_whole(served, reason, head))

    return routes


def check_supported(response_format: dict[str, Any] | None, tool_choice: object) -> None:
    """Refuse what would otherwise be ignored in silence although the client depends on it."""
    kind = (response_format or {}).get("type", "text")
    if kind != "text":
        message = "answers are plain text: structured output is not supported"
        raise bad_request("unsupported_value", message, "response_format")
    if tool_choice not in (None, "auto", "none"):
        message = "tools are not called: tool_choice may be auto or none"
        raise bad_request("unsupported_value", message, "tool_choice")


def _whole(served: Served, reason: str, head: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", "content": "".join(served.pieces), "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    return {
        **head,
        "object": "chat.completion",
        "choices": [choice],
        "usage": served.usage,
        "skip": served.outline,
    }


def _stream(
    served: Served, reason: str, head: dict[str, Any], usage_apart: bool
) -> Iterator[bytes]:
    """Usage comes with the last choice, or in a chunk of its own if the client asked for that."""
    head = {**head, "object": "chat.completion.chunk"}

    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**head, "choices": [choice], **more})

    yield chunk({"role": "assistant", "content": ""})
    for piece in served.pieces:
        yield chunk({"content": piece})
    usage = {"usage": served.usage}
    yield chunk({}, reason, skip=served.outline, **({} if usage_apart else usage))
    if usage_apart:
        yield event({**head, "choices": [], **usage})
    yield b"data: [DONE]\n\n"


def event(value: dict[str, Any], name: str = "") -> bytes:
    kind = f"event: {name}\n" if name else ""
    return f"{kind}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()
