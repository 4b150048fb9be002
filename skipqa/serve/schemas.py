"""What clients send and get, as OpenAI's API has it; unknown fields are ignored, numbers bounded.

Enters: JSON. Leaves: checked values, and the schemas of the OpenAPI document. What a field means is
decided by the routes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from skipqa.serve.options import SYSTEMS

MAX_TOKENS, MAX_PASSAGES = 4_096, 16
MAX_MESSAGES, MAX_TEXT = 256, 1_000_000
MAX_INDEXES = 8

System = Literal["skip", "dense", "no-retrieval"]
assert set(SYSTEMS) == set(System.__args__)  # type: ignore[attr-defined]

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Name = Annotated[str, Field(max_length=200)]
Names = Annotated[list[Name], Field(max_length=MAX_INDEXES)]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS, description="V', visual tokens that are kept")]
Passages = Annotated[int, Field(ge=0, le=MAX_PASSAGES, description="K', passages that are kept")]
Seconds = Annotated[float, Field(gt=0, le=3_600, allow_inf_nan=False)]
MaxTokens = Annotated[int, Field(ge=1, le=1_000_000)]
# The routes refuse other values in words of their own; the document says what they take.
Format = Annotated[
    dict[str, Any], WithJsonSchema({"type": "object", "properties": {"type": {"const": "text"}}})
]
ToolChoice = Annotated[
    str | dict[str, Any] | None, WithJsonSchema({"enum": ["auto", "none", None]})
]
Absent = Annotated[Name | None, WithJsonSchema({"type": "null"})]


class Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class SkipOptions(Lenient):
    """How SKIP is to answer, beyond what other APIs have."""

    tokens: Tokens | None = None
    passages: Passages | None = None
    threshold: Probability | None = Field(default=None, description="of the fast path")
    fast_path: bool = True
    system: System = "skip"
    citations: bool | None = Field(default=None, description="in the text of the answer")
    timeout: Seconds | None = None


class ImageUrl(Lenient):
    url: str = Field(description="a data: URL with the image in base64")


class Part(Lenient):
    """A part of a message: text, or an image."""

    type: str = Field(max_length=64)
    text: Text | None = None
    image_url: ImageUrl | str | None = None


class Message(Lenient):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Annotated[list[Part], Field(max_length=MAX_MESSAGES)] | None = None


class StreamOptions(Lenient):
    include_usage: bool | None = None


class Sampling(Lenient):
    """Accepted so that clients may send them: decoding is greedy."""

    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = None
    top_p: Probability | None = None
    user: Name | None = None
    stream: bool | None = None
    index: Name | Names | None = Field(default=None, description="the indexes to search")
    skip: SkipOptions | None = None


class ChatRequest(Sampling):
    model: Name
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    stream_options: StreamOptions | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    n: Annotated[int, Field(ge=1, le=1)] | None = None
    stop: Name | Annotated[list[Name], Field(max_length=16)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: int | None = None
    response_format: Format | None = None
    tool_choice: ToolChoice = None


class TextOptions(Lenient):
    format: Format | None = None


class InputItem(Lenient):
    """A message of the Responses API."""

    type: str = Field(default="message", max_length=64)
    role: Literal["system", "developer", "user", "assistant"] = "user"
    content: Text | Annotated[list[Part], Field(max_length=MAX_MESSAGES)] | None = None


class ResponsesRequest(Sampling):
    model: Name
    input: Text | Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES)]
    instructions: Text | None = None
    max_output_tokens: MaxTokens | None = None
    previous_response_id: Absent = None
    text: TextOptions | None = None
    tool_choice: ToolChoice = None


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    error: ErrorDetail


class AskReply(BaseModel):
    id: str
    created: int
    model: str
    skip: dict[str, Any] = Field(description="the pathway: budget, regions, passages, costs")
    usage: Usage


class ChoiceMessage(BaseModel):
    role: str
    content: str
    refusal: str | None


class Choice(BaseModel):
    index: int
    message: ChoiceMessage
    logprobs: None
    finish_reason: Literal["stop", "length"]


class ChatReply(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    system_fingerprint: str
    skip: dict[str, Any]


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    input_modalities: list[str]
    output_modalities: list[str]
    index: list[str]


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]
