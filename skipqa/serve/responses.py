"""POST /v1/responses: a small part of the Responses API, without state.

Enters: an input of text or of messages. Leaves: one output message, whole or as events. Nothing is
stored, so an earlier response cannot be referred to.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from skipqa.serve.chat import EVENTS, check_supported, event
from skipqa.serve.conversation import Asked, asked
from skipqa.serve.errors import bad_request
from skipqa.serve.schemas import ResponsesRequest
from skipqa.serve.service import Served, Service, identifier


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post(
        "/v1/responses",
        tags=["OpenAI"],
        responses={
            200: {
                "content": {
                    "application/json": {"schema": {"type": "object"}},
                    EVENTS: {},
                }
            }
        },
    )
    async def responses(body: ResponsesRequest, request: Request) -> Response:
        """Answer a question about an image."""
        if body.previous_response_id is not None:
            message = "responses are not stored: send the whole conversation"
            raise bad_request("unsupported_value", message, "previous_response_id")
        check_supported(None if body.text is None else body.text.format, body.tool_choice)
        if isinstance(body.input, str):
            if not body.input.strip():
                raise bad_request("missing_question", "the input is empty", "input")
            conversation = Asked(body.input, "")
        else:
            said = [item for item in body.input if item.type == "message"]
            conversation = asked(said, "input")
        found = await service.ask_conversation(
            request, conversation, body.model, body.index, body.skip
        )
        served, reason = found.until(body.max_output_tokens, ())
        response = _response(body, served, reason)
        if body.stream:
            return StreamingResponse(_stream(response, served), media_type=EVENTS)
        return JSONResponse(response)

    return routes


def _response(body: ResponsesRequest, served: Served, reason: str) -> dict[str, Any]:
    done = reason == "stop"
    text = {"type": "output_text", "text": "".join(served.pieces), "annotations": []}
    message = {
        "type": "message",
        "id": identifier("msg"),
        "role": "assistant",
        "status": "completed" if done else "incomplete",
        "content": [text],
    }
    usage = served.usage
    return {
        "id": identifier("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": message["status"],
        "model": body.model,
        "output": [message],
        "error": None,
        "incomplete_details": None if done else {"reason": "max_output_tokens"},
        "instructions": body.instructions,
        "metadata": {},
        "parallel_tool_calls": False,
        "temperature": body.temperature,
        "tool_choice": "none",
        "tools": [],
        "top_p": body.top_p,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
        "skip": served.outline,
    }


def _stream(response: dict[str, Any], served: Served) -> Iterator[bytes]:
    (message,) = response["output"]
    (text,) = message["content"]
    begun = {**response, "status": "in_progress", "output": [], "usage": None, "skip": None}
    place = {"item_id": message["id"], "output_index": 0, "content_index": 0}
    empty = {**text, "text": ""}
    item = {**message, "status": "in_progress", "content": []}
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": begun}),
        ("response.in_progress", {"response": begun}),
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.content_part.added", {**place, "part": empty}),
        *(
            ("response.output_text.delta", {**place, "delta": piece, "logprobs": []})
            for piece in served.pieces
        ),
        ("response.output_text.done", {**place, "text": text["text"], "logprobs": []}),
        ("response.content_part.done", {**place, "part": text}),
        ("response.output_item.done", {"output_index": 0, "item": message}),
        (f"response.{response['status']}", {"response": response}),
    ]
    for number, (name, value) in enumerate(events):
        yield event({"type": name, "sequence_number": number, **value}, name)
