"""POST /v1/ask: a photo and a question as a form, and the whole pathway back."""

from __future__ import annotations

import inspect
import time
from typing import Annotated

from fastapi import APIRouter, File, Form, Request, UploadFile
from starlette.responses import JSONResponse

from skipqa.errors import choices
from skipqa.serve.errors import bad_request
from skipqa.serve.schemas import (
    AskReply,
    Name,
    Names,
    Passages,
    Probability,
    SkipOptions,
    System,
    Tokens,
)
from skipqa.serve.service import Service, identifier

MAX_QUESTION = 1_000


def router(service: Service) -> APIRouter:
    routes = APIRouter()

    @routes.post("/v1/ask", tags=["skipqa"], responses={200: {"model": AskReply}})
    async def ask(  # a parameter is a field of the form
        request: Request,
        question: Annotated[str, Form(min_length=1, max_length=MAX_QUESTION)],
        photo: Annotated[UploadFile | None, File(description="an image file")] = None,
        index: Annotated[Names, Form()] = [],  # noqa: B006 (FastAPI copies it)
        fast_path: Annotated[bool, Form()] = True,
        tokens: Annotated[Tokens | None, Form()] = None,
        passages: Annotated[Passages | None, Form()] = None,
        threshold: Annotated[Probability | None, Form()] = None,
        system: Annotated[System, Form()] = "skip",
        model: Annotated[Name | None, Form()] = None,
    ) -> JSONResponse:
        """Answer a question about a photo, with everything that led to the answer."""
        # A photo under another name would else be left out, and the question answered without it
        for name in await request.form():
            if name not in fields:
                told = f"the form has no such field, but {choices(name, fields)}"
                raise bad_request("unknown_field", told)
        skip = SkipOptions(
            tokens=tokens,
            passages=passages,
            threshold=threshold,
            fast_path=fast_path,
            system=system,
        )
        content = b"" if photo is None else await photo.read()
        if photo is not None and not content:
            raise bad_request("invalid_image", "the photo is empty", "photo")
        name = model or service.settings.model
        options = service.options(skip, service.indexes(name, index))
        served = await service.ask(request, question, content, options, None)
        return JSONResponse(
            {
                "id": identifier("ask"),
                "created": int(time.time()),
                "model": name,
                "skip": served.outline,
                "usage": served.usage,
            }
        )

    fields = [name for name in inspect.signature(ask).parameters if name != "request"]
    return routes
