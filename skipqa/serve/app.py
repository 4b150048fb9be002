"""Read this first: the HTTP application, put together.

Enters: `ServeSettings`. Leaves: an ASGI application that any server can run. The guard stands
around everything; behind it are OpenAI's routes, our own, the page, health and metrics.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from skipqa import __version__
from skipqa.errors import UserError
from skipqa.serve import ask, chat, errors, indexes, models, responses
from skipqa.serve.engine import Engine
from skipqa.serve.guard import Guard
from skipqa.serve.metrics import Metrics
from skipqa.serve.schemas import ErrorBody
from skipqa.serve.service import Service, configured_indexes
from skipqa.serve.settings import ServeSettings
from skipqa.serve.store import IndexStore

FAILURES = {
    400: "a value that cannot be",
    401: "no valid key",
    403: "not allowed",
    404: "no such thing",
    405: "another method",
    408: "a body that came too slowly",
    409: "the index is being built",
    413: "too large",
    415: "another content type",
    429: "too many questions",
    500: "an error of the server",
    503: "loading or stopping",
    504: "it took too long",
    507: "the quota is used up",
}
PAGE = {"index.html": "text/html", "page.css": "text/css", "page.js": "text/javascript"}


def create_app(settings: ServeSettings, unable: Callable[[str], None] = lambda _: None) -> Guard:
    """`unable` is called with the reason if the models cannot be loaded."""
    engine, metrics = Engine(settings.engine, unable), Metrics()
    store = None
    if settings.store is not None:
        reserved = configured_indexes(settings)
        store = IndexStore(settings.store, settings.quota_bytes, reserved=reserved)
    service = Service(settings, engine, store, metrics)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if store is not None:
            try:
                await store.start()
            except UserError as error:
                unable(str(error))
                yield
                return
        engine.start()
        try:
            if settings.ready_first:
                await engine.wait_until_ready()
            yield
        finally:
            await engine.stop()
            if store is not None:
                await store.stop()

    app = FastAPI(
        title="skipqa",
        version=__version__,
        description="Answers to questions about images, with their evidence.",
        lifespan=lifespan,
        docs_url=None,  # the page of FastAPI loads scripts from elsewhere
        redoc_url=None,
        responses={
            status: {"model": ErrorBody, "description": told} for status, told in FAILURES.items()
        },
    )
    errors.install(app)
    for part in (chat, responses, ask, indexes, models):
        app.include_router(part.router(service))
    _own_routes(app, service)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return Guard(app, settings, metrics)


def _own_routes(app: FastAPI, service: Service) -> None:
    @app.get("/health", tags=["operation"])
    async def health() -> JSONResponse:
        """Whether questions are answered; needs no key."""
        ready = service.engine.ready
        return JSONResponse({"status": "ok" if ready else "loading"}, 200 if ready else 503)

    @app.get(
        "/metrics",
        tags=["operation"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _static("index.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        if name not in PAGE:
            raise errors.ApiError(404, "not_found", "there is nothing at this address")
        return _static(name)


def _static(name: str) -> Response:
    content = files("skipqa.serve").joinpath("static", name).read_bytes()
    return Response(content, media_type=PAGE[name])


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document without its own validation error, which this server never sends."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for schema in document["components"]["schemas"].values():
            if schema["title"].startswith("Body_"):  # a form has no null: its field is left out
                for field in schema["properties"].values():
                    field |= next(iter(field.pop("anyOf", [{}])))
                schema["additionalProperties"] = False  # as `ask.py` sees to it
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        scheme = {"type": "http", "scheme": "bearer"}
        document["components"]["securitySchemes"] = {"key": scheme}
        document["security"] = [{"key": []}]
        document["paths"]["/health"]["get"]["security"] = []
        app.openapi_schema = document
    return app.openapi_schema
