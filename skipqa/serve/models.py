"""GET /v1/models: one model, and one more name of it for every index it can search.

Clients that can only choose a model choose the documents that way: `skipqa-pocket:notes`.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse

from skipqa.knowledge.default import DEFAULT
from skipqa.serve.errors import ApiError
from skipqa.serve.schemas import ModelCard, ModelList
from skipqa.serve.service import Service


def router(service: Service) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    def cards() -> list[dict[str, Any]]:
        name, (_, *own) = service.settings.model, service.index_names()
        searched = {name: service.searched}
        for one in own:
            searched[f"{name}:{one}"] = [one]
            searched[f"{name}:{DEFAULT}+{one}"] = [DEFAULT, one]
        return [_card(model, indexes, service.created) for model, indexes in searched.items()]

    @routes.get("/v1/models", responses={200: {"model": ModelList}})
    async def list_models() -> JSONResponse:
        """The names that requests may have as `model`."""
        return JSONResponse({"object": "list", "data": cards()})

    @routes.get("/v1/models/{model}", responses={200: {"model": ModelCard}})
    async def get_model(model: str) -> JSONResponse:
        for card in cards():
            if card["id"] == model:
                return JSONResponse(card)
        raise ApiError(404, "model_not_found", "there is no such model", "model")

    return routes


def _card(name: str, indexes: list[str], created: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "skipqa",
        "input_modalities": ["text", "image"],
        "output_modalities": ["text"],
        "index": indexes,
    }
