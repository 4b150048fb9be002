"""A pytest plugin for the OpenAI client's own tests, from its source distribution.

Those tests are written for a mock that knows every route, any key and any model. Here they get the
server's key and its model's name. Tests of routes that this server does not have are skipped, with
the reason; nothing of what a test asserts is changed.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import openai
import pytest

KEY, MODEL = os.environ["SUITES_KEY"], os.environ["SUITES_MODEL"]
THEIR_MODEL = re.compile(r"gpt-6-astra")
STORED = "nothing is stored: there is nothing to retrieve, update, list, cancel or delete"
LEFT_OUT = {  # (file, name of the test): why
    (r".", r"test_path_params"): "about the client alone: nothing is sent",
    (r"chat/test_completions", r"create_with_all_params"): "asks for an answer of 0 tokens",
    (r"chat/test_completions", r"_(retrieve|update|list|delete)"): STORED,
    (r"test_models", r"_delete"): "a model cannot be deleted",
    (r"test_responses", r"create_with_all_params"): "continues a stored conversation",
    (r"test_responses", r"_create_"): "has no input, so no question",
    (r"test_responses", r"_(retrieve|delete|cancel|compact)"): STORED,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sys.modules["tests.conftest"].api_key = KEY  # type: ignore[attr-defined]
    for item in items:
        for (file, name), why in LEFT_OUT.items():
            if re.search(file, str(item.path)) and re.search(name, item.name):
                item.add_marker(pytest.mark.skip(reason=why))
                break


def pytest_configure() -> None:
    prepare, prepare_async = openai.OpenAI._prepare_options, openai.AsyncOpenAI._prepare_options

    def with_our_model(self: openai.OpenAI, options: Any) -> Any:
        return prepare(self, _renamed(options))

    async def with_our_model_async(self: openai.AsyncOpenAI, options: Any) -> Any:
        return await prepare_async(self, _renamed(options))

    openai.OpenAI._prepare_options = with_our_model  # type: ignore[method-assign]
    openai.AsyncOpenAI._prepare_options = with_our_model_async  # type: ignore[method-assign]


def _renamed(options: Any) -> Any:
    options.url = THEIR_MODEL.sub(MODEL, options.url)
    if isinstance(options.json_data, dict) and "model" in options.json_data:
        options.json_data = {**options.json_data, "model": MODEL}
    return options
