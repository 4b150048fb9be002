"""Prompted mode against the project's own server, which speaks the same API.

Its small model follows no instructions, so this is what a reader of bad replies has to stand: real
HTTP, a real key, and completions that were not written for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from skipqa.knowledge import Library
from skipqa.prompted import Endpoint, EndpointError, LevelBudget, Prompted, PromptedConfig
from tools.suites.server import KEY, MODEL, Running, running

# The server takes questions of 200 words: few passages, and short ones.
CONFIG = PromptedConfig(medium=LevelBudget(2, 2), hard=LevelBudget(2, 2), excerpt_words=20)


@pytest.fixture(scope="module")
def server(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("served")) as server:
        yield server


def test_every_step_is_answered(server: Running, library: Library, cup: Image.Image) -> None:
    endpoint = Endpoint(f"{server.url}/v1", KEY)
    config = replace(CONFIG, fast_path=False)
    answer = Prompted(endpoint, MODEL, library, config).answer(cup, "How is espresso brewed?")
    purposes = dict.fromkeys(call.purpose for call in answer.calls)
    assert list(purposes) == ["draft", "regions", "queries", "relevance", "answer"]
    assert answer.text
    assert answer.fallbacks
    assert "Espresso" in {passage.title for passage in answer.passages}
    assert not answer.usage.estimated, "the server counts its tokens"
    assert answer.usage.prompt_tokens > 0


def test_a_wrong_key_is_refused(server: Running, library: Library, cup: Image.Image) -> None:
    prompted = Prompted(Endpoint(f"{server.url}/v1", "sk-wrong"), MODEL, library, CONFIG)
    with pytest.raises(EndpointError) as refused:
        prompted.answer(cup, "What is this?")
    assert refused.value.status == 401
    assert "sk-wrong" not in str(refused.value)
