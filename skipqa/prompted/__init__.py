"""Prompted mode: the pathway by prompts alone, over any OpenAI-compatible endpoint.

    library = Library.open(["default"])
    prompted = Prompted("http://127.0.0.1:8000/v1", "some-vlm", library)
    answer = prompted.answer("photo.jpg", "How is this drink brewed?")

`pathway.py` is the flow, `prompts.py` what is asked, `parsing.py` what is read from completions,
`endpoint.py` HTTP, `retrieval.py` the search, `baselines.py` PICa and PromptCap. No weights of ours
are loaded.
"""

from skipqa.prompted.answer import (
    Call,
    JudgedPassage,
    NamedRegion,
    PromptedAnswer,
    Usage,
)
from skipqa.prompted.config import EndpointConfig, LevelBudget, PromptedConfig
from skipqa.prompted.endpoint import Endpoint, EndpointError
from skipqa.prompted.prompted import Prompted

__all__ = [
    "Call",
    "Endpoint",
    "EndpointConfig",
    "EndpointError",
    "JudgedPassage",
    "LevelBudget",
    "NamedRegion",
    "Prompted",
    "PromptedAnswer",
    "PromptedConfig",
    "Usage",
]
