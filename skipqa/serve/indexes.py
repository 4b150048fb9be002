"""/v1/indexes: people's own documents, built into indexes that questions can name.

Enters: files as a form. Leaves: how far their index is. The work is the store's.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel
from starlette.datastructures import FormData, UploadFile
from starlette.responses import JSONResponse

from skipqa.knowledge.default import DEFAULT
from skipqa.serve.errors import ApiError, bad_request
from skipqa.serve.service import Service
from skipqa.serve.store import IndexStatus, IndexStore, Progress

FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "files"],
                    "properties": {
                        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]{0,63}$"},
                        "files": {
                            "type": "array",
                            "items": {"type": "string", "format": "binary"},
                            "minItems": 1,
                        },
                    },
                }
            }
        },
    }
}
Named = Annotated[str, Path(max_length=64)]


class Quota(BaseModel):
    bytes: int
    used: int


class IndexList(BaseModel):
    object: str
    data: list[dict[str, Any]]
    quota: Quota


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["indexes"])

    def store() -> IndexStore:
        if service.store is None:
            raise ApiError(404, "no_uploads", "this server takes no documents")
        return service.store

    @routes.post("/v1/indexes", status_code=202, openapi_extra=FORM)
    async def build_index(request: Request) -> JSONResponse:
        """Upload documents; their index is built in the background."""
        kept = store()
        limits = kept.limits
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
            message = "documents are sent as multipart/form-data"
            raise ApiError(415, "unsupported_media_type", message)
        try:
            form = await request.form(max_files=limits.files + 1, max_fields=8)
        except (UnicodeError, LookupError):  # of a charset that is none
            raise bad_request("invalid_form", "the form cannot be read") from None
        try:
            name = form.get("name")
            if not isinstance(name, str):
                raise bad_request("missing_name", "the form has no name for the index", "name")
            status = await asyncio.to_thread(_upload, kept, name, form)
        finally:
            await form.close()
        return JSONResponse(status.as_dict(), 202)

    @routes.get("/v1/indexes", responses={200: {"model": IndexList}})
    async def list_indexes() -> JSONResponse:
        """The indexes that questions may name, and how far those are that are being built."""
        rows = [built_in(name, service).as_dict() for name in (DEFAULT, *service.configured)]
        quota = {"bytes": 0, "used": 0}
        if (kept := service.store) is not None:
            rows += [status.as_dict() for status in kept.list()]
            used = await asyncio.to_thread(kept.used_bytes)
            quota = {"bytes": kept.quota_bytes, "used": used}
        return JSONResponse({"object": "list", "data": rows, "quota": quota})

    @routes.get("/v1/indexes/{name}")
    async def get_index(name: Named) -> JSONResponse:
        """How far an index is."""
        if name == DEFAULT or name in service.configured:
            return JSONResponse(built_in(name, service).as_dict())
        return JSONResponse(store().status(name).as_dict())

    @routes.delete("/v1/indexes/{name}")
    async def delete_index(name: Named) -> JSONResponse:
        """Delete an index and its documents."""
        if name == DEFAULT or name in service.configured:
            raise ApiError(403, "built_in", "this index belongs to the server", "name")
        await asyncio.to_thread(store().delete, name)
        return JSONResponse({"name": name, "deleted": True})

    return routes


def _upload(store: IndexStore, name: str, form: FormData) -> IndexStatus:
    with store.create(name) as upload:
        for file in form.getlist("files"):
            if isinstance(file, UploadFile):
                upload.add(file.filename or "", file.file)
        return upload.commit()


def built_in(name: str, service: Service) -> IndexStatus:
    """An index that the server was started with."""
    return IndexStatus(
        name=name,
        status="ready",
        progress=Progress("ready"),
        passages=service.num_passages(name),
        bytes=0,
        documents=0,
        skipped=(),
        error=None,
        built_in=True,
        created=0,
    )
