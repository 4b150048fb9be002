"""The options of every command that asks a language model elsewhere, and what it spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from skipqa.errors import UserError

if TYPE_CHECKING:
    from skipqa.prompted import Endpoint, EndpointConfig, Usage

KEY_VARIABLE = "SKIPQA_ENDPOINT_KEY"


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="SKIPQA_ENDPOINT",
            help="Base address of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1.",
        ),
    ] = None
    model: Annotated[
        str | None, typer.Option(envvar="SKIPQA_ENDPOINT_MODEL", help="Name of the model there.")
    ] = None
    key_variable: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable that holds the API key.")
    ] = KEY_VARIABLE

    def named(self) -> tuple[str, str]:
        """The address and the model, both of which have to be given."""
        if not self.endpoint or not self.model:
            raise UserError("name the API and the model there: --endpoint URL --model NAME")
        return self.endpoint, self.model

    def open(self, config: EndpointConfig) -> Endpoint:
        from skipqa.prompted import Endpoint

        return Endpoint(self.named()[0], config=config, key_variable=self.key_variable)


def tokens(usage: Usage) -> str:
    told = " (estimated where the endpoint does not count)" if usage.estimated else ""
    return (
        f"{usage.total_tokens:,} tokens: {usage.prompt_tokens:,} in, "
        f"{usage.completion_tokens:,} out{told}"
    )
