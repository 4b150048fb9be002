"""Which question a conversation asks, and about which image.

Enters: messages, as the chat and the Responses API have them. Leaves: the last text of the user and
the last image that they showed. The server keeps no conversation: a client sends all of it each
time. Instructions of a system or developer are the question only where a user says nothing: a
tone or a form that they ask for has no effect on answers of a few words.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from skipqa.serve.errors import bad_request
from skipqa.serve.fetch import FetchPolicy, FetchRefused, fetch_image
from skipqa.serve.schemas import ImageUrl, Part

DATA_URL = re.compile(r"data:image/[a-z0-9.+-]{1,40};base64,", re.IGNORECASE)
INSTRUCTIONS = ("system", "developer")
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
IMAGE_PARTS = ("image_url", "input_image")


class Said(Protocol):
    @property
    def role(self) -> str: ...

    @property
    def content(self) -> str | list[Part] | None: ...


class Asked(NamedTuple):
    question: str
    image: str  # its URL; empty where there is none


def asked(messages: Sequence[Said], param: str) -> Asked:
    user = [message for message in messages if message.role == "user"]
    others = [message for message in messages if message.role in INSTRUCTIONS]
    texts = (_text(message.content, param) for message in reversed(user or others))
    question = next((text for text in texts if text.strip()), "")
    if not question:
        raise bad_request("missing_question", "no message has a question", param)
    images = [url for message in user for url in _images(message.content)]
    return Asked(question, images[-1] if images else "")


def _text(content: str | list[Part] | None, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type not in (*TEXT_PARTS, *IMAGE_PARTS):
            message = "a part of a message is text or an image here"
            raise bad_request("unsupported_content", message, param)
    return "\n".join(part.text for part in content if part.type in TEXT_PARTS and part.text)


def _images(content: str | list[Part] | None) -> list[str]:
    parts = content if isinstance(content, list) else []
    urls = [part.image_url for part in parts if part.type in IMAGE_PARTS]
    return [url.url if isinstance(url, ImageUrl) else url or "" for url in urls]


async def photo_of(url: str, policy: FetchPolicy | None, param: str) -> bytes:
    """The bytes of an image; `policy` says which may be fetched, None that none may."""
    if not url:
        raise bad_request("invalid_image", "an image of the conversation has no data", param)
    if (found := DATA_URL.match(url)) is not None:
        try:
            photo = binascii.a2b_base64(url[found.end() :], strict_mode=True)
        except (binascii.Error, ValueError):
            message = "the image is not valid base64"
            raise bad_request("invalid_image", message, param) from None
        if not photo:
            raise bad_request("invalid_image", "the image is empty", param)
        return photo
    if url[:5].lower() == "data:":
        message = "an image is sent as data:image/…;base64,…"
        raise bad_request("invalid_image", message, param)
    if policy is None:
        message = "this server fetches no images: send them as data:image/…;base64,…"
        raise bad_request("image_url_not_allowed", message, param)
    try:
        return await fetch_image(url, policy)
    except FetchRefused as error:
        raise bad_request("invalid_image_url", str(error), param) from None
