"""LangChain's standard integration tests of chat models, with `ChatOpenAI` at our address.

Run in the suites' environment. Nothing of the tests is changed but where their picture comes from:
they fetch one from the internet, and get one drawn here instead. The properties say what the model
can do; tools, structured output, audio, PDF and images by URL it cannot.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests


@pytest.fixture(autouse=True)
def picture(monkeypatch: pytest.MonkeyPatch) -> None:
    content = Path(os.environ["SUITES_PHOTO"]).read_bytes()
    monkeypatch.setattr(httpx, "get", lambda *_, **__: SimpleNamespace(content=content))


class Standard(ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {
            "model": os.environ["SUITES_MODEL"],
            "base_url": f"{os.environ['SUITES_URL']}/v1",
            "api_key": os.environ["SUITES_KEY"],
        }

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_json_mode(self) -> bool:
        return False

    @property
    def supports_image_inputs(self) -> bool:
        return True

    @property
    def returns_usage_metadata(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return f"{os.environ['SUITES_MODEL']}:default"


class TestChatCompletions(Standard):
    pass


class TestResponses(Standard):
    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}
