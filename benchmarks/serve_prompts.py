"""The prompts of `bench serve`: those of each workload that fit, and the room the longest needs."""

import argparse
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from benchmarks.serve_published import PUBLISHED, WORKLOADS
from domino_cli.errors import UsageError
from domino_cli.progress import say
from domino_cli.stack import StackConfig
from loadtest.arguments import load_prompts
from loadtest.prompts import RANDOM, LoadPrompt
from router.tokenizer import Tokenizer
from serving.target_config import open_target


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompts:
    """by_name: of each workload. longest: positions of the longest conversation with answers."""

    by_name: dict[str, list[LoadPrompt]]
    longest: int
    chat: bool


def fitting_prompts(args: argparse.Namespace, config: StackConfig) -> Prompts:
    """The first num_prompts of each that fit context and flags; a longer workload is cut.

    Raises UsageError when none of a workload does.
    """
    _, target = open_target(config.target)
    tokenizer = Tokenizer.load(config.target)
    measure = Lengths(tokenizer, tokenizer.has_chat_template and not args.no_chat, args)
    every = copy.copy(args)
    every.num_prompts = args.num_prompts if RANDOM in args.workload else None
    found: dict[str, list[LoadPrompt]] = {}
    for name, prompts in load_prompts(every, args.workload, target).items():
        fitting = measure.fitting(prompts, target.max_context)
        found[name] = list(islice(fitting, args.num_prompts))
        if not found[name]:
            raise UsageError(f"workload: no prompt of {name} fits {target.max_context} positions")
        if len(found[name]) < args.num_prompts:
            say(f"{name}: {len(found[name])} prompts, {args.num_prompts} were asked for")
    longest = max(measure.positions(p) for prompts in found.values() for p in prompts)
    if args.synthetic_acceptance == PUBLISHED:
        found = as_published(found)
    return Prompts(by_name=found, longest=longest, chat=measure.chat)


def as_published(found: dict[str, list[LoadPrompt]]) -> dict[str, list[LoadPrompt]]:
    """The same prompts for each published workload: what differs is the acceptance pretended."""
    prompts = [prompt for of_name in found.values() for prompt in of_name]
    return {name: [replace(p, workload=name) for p in prompts] for name in WORKLOADS}


class Lengths:
    """Tokens of prompts, as the router will count them."""

    def __init__(self, tokenizer: Tokenizer, chat: bool, args: argparse.Namespace) -> None:
        self._tokenizer, self.chat = tokenizer, chat
        self._max_tokens: int = args.max_tokens
        self._max_prompt_tokens: int | None = args.max_prompt_tokens

    def fitting(self, prompts: Sequence[LoadPrompt], max_context: int) -> Iterator[LoadPrompt]:
        for prompt in prompts:
            most = max(self._turns(prompt))
            short = self._max_prompt_tokens is None or most <= self._max_prompt_tokens
            if short and self.positions(prompt) <= max_context:
                yield prompt

    def positions(self, prompt: LoadPrompt) -> int:
        """Most positions of a conversation with its answers."""
        turns = self._turns(prompt)
        return sum(turns) + self._max_tokens * len(turns)

    def _turns(self, prompt: LoadPrompt) -> list[int]:
        """Tokens of each turn."""
        if prompt.token_ids:
            return [len(prompt.token_ids)]
        if not self.chat:
            return [len(self._tokenizer.encode_text(text)) for text in prompt.turns]
        chats = ([{"role": "user", "content": text}] for text in prompt.turns)
        return [len(self._tokenizer.encode_chat(chat)) for chat in chats]
