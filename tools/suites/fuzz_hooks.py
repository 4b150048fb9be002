"""Loaded by schemathesis in its own environment: makes what it generates mean something here.

A schema can say that a photo is bytes and a message is text. It cannot say that the bytes are an
image, that a conversation has a question, that a model exists or that a document can be indexed.
Generated requests that are valid by the schema get these, so that they reach the pipeline; those
that are meant to be invalid are sent as they were generated.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import schemathesis

MODEL = os.environ["SUITES_MODEL"]
PHOTO = Path(os.environ["SUITES_PHOTO"]).read_bytes()
PHOTO_URL = os.environ["SUITES_PHOTO_URL"]
DOCUMENT = b"# Lanterns\n\nThe lantern of the old harbour burns whale oil.\n"
QUESTION = "What is this?"
TURN = itertools.count()
LEAST_TIMEOUT_S = 60.0  # a question that is given less than it takes is a 504 by design


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    meta, body = case.meta, case.body
    if meta is None or not meta.generation.mode.is_positive or not isinstance(body, dict):
        return
    change = {"/v1/chat/completions": _chat, "/v1/responses": _responses}.get(case.path)
    if change is not None:
        case.body = change(_known(dict(body)))
        if meta.phase.name.value == "coverage" and case.body.get("skip") is None:
            case.body["skip"] = {"threshold": 0}  # hundreds of them: the draft will do
    elif case.path == "/v1/ask":
        kwargs |= _ask(_known(dict(body)))
    elif case.path == "/v1/indexes" and case.method.upper() == "POST":
        kwargs["data"] = {"name": body.get("name", "")}
        kwargs["files"] = [("files", ("notes/lanterns.md", DOCUMENT))]


def _known(body: dict[str, Any]) -> dict[str, Any]:
    """Names that exist, time to answer, and a stream now and then."""
    if body.get("model") is not None:
        body["model"] = MODEL
    if body.get("index") is not None:
        body["index"] = ["default"]
    if "stream" in body:
        body["stream"] = next(TURN) % 3 == 0
    skip = body.get("skip")
    if isinstance(skip, dict) and skip.get("timeout") is not None:
        body["skip"] = {**skip, "timeout": max(LEAST_TIMEOUT_S, skip["timeout"])}
    return body


def _chat(body: dict[str, Any]) -> dict[str, Any]:
    parts = [
        {"type": "text", "text": QUESTION},
        {"type": "image_url", "image_url": {"url": PHOTO_URL}},
    ]
    return {**body, "messages": [*body["messages"][:200], {"role": "user", "content": parts}]}


def _responses(body: dict[str, Any]) -> dict[str, Any]:
    if isinstance(body["input"], str):
        return {**body, "input": body["input"] if body["input"].strip() else QUESTION}
    parts = [
        {"type": "input_text", "text": QUESTION},
        {"type": "input_image", "image_url": PHOTO_URL},
    ]
    return {**body, "input": [*body["input"][:200], {"role": "user", "content": parts}]}


def _ask(body: dict[str, Any]) -> dict[str, Any]:
    """The form itself: bytes put into a body would no longer be valid by the schema."""
    fields = {"question": QUESTION} | {name: value for name, value in body.items() if value != ""}
    photo = [("photo", ("photo.png", PHOTO))] if fields.pop("photo", None) is not None else []
    form: list[tuple[str, Any]] = []
    for name, value in fields.items():
        for one in value if isinstance(value, list) else [value]:
            said = str(one).lower() if isinstance(one, bool) else str(one)
            form.append((name, (None, said if said.strip() else QUESTION)))
    return {"files": form + photo}
