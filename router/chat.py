"""Conversation in, prompt text out, by the target's own chat template."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from serving.errors import BadRequest, StartError


class ChatTemplate:
    """A Hugging Face chat template; `special_tokens` are the names templates use, "bos_token"..."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise StartError(f"chat_template, line {error.lineno}: {error.message}") from error
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Prompt up to where the assistant begins; BadRequest when the template refuses it."""
        try:
            return self._template.render(
                messages=messages,
                tools=None,  # absent ones are None to templates, not undefined
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except Exception as error:  # a template runs code of its own: TypeError, OverflowError...
            raise BadRequest("chat", f"the target's chat template refuses it: {error}") from error


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's part for training; here its body as it stands."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's declaration, not ours)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    """What templates written for transformers expect to find."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
