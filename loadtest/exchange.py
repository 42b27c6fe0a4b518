"""One conversation with the router: an item in, a record of every turn out."""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from domino_client import ChatTurn, Client, Completion, RequestArgs, ServingError
from loadtest.feed import Item
from loadtest.plan import WARM_UP_TOKENS, Plan
from loadtest.record import Record


def converse(
    client: Client, item: Item, plan: Plan, now: Callable[[], float] = time.perf_counter
) -> Iterator[Record]:
    """Asks turn after turn, each with the answers before it; ends with the first failure.

    now: seconds since the measurement began.
    """
    chat: list[ChatTurn] = []
    for turn in range(max(1, len(item.prompt.turns))):
        if item.prompt.turns:
            chat.append({"role": "user", "content": item.prompt.turns[turn]})
        record, completion = ask(client, item, turn, request_of(item, chat, plan), now)
        yield record
        if completion is None:
            return
        chat.append({"role": "assistant", "content": completion.text})


def request_of(item: Item, chat: list[ChatTurn], plan: Plan) -> tuple[str | None, RequestArgs]:
    """Text and arguments of a request. Without a template, turns follow each other line by line."""
    args = settings(item, plan)
    if item.prompt.token_ids:
        return None, args | RequestArgs(token_ids=item.prompt.token_ids)
    if plan.chat:
        return None, args | RequestArgs(chat=list(chat))
    return "\n".join(turn["content"] for turn in chat), args


def ask(
    client: Client,
    item: Item,
    turn: int,
    request: tuple[str | None, RequestArgs],
    now: Callable[[], float],
) -> tuple[Record, Completion | None]:
    """One timed request; no completion when it failed, and what had come until then."""
    text, args = request
    times: list[float] = []
    counts: list[int] = []
    sent_s, begin = now(), time.perf_counter()
    completion, error = None, None
    try:
        with client.stream(text, **args) as stream:
            for chunk in stream:
                if chunk.token_ids:
                    times.append(time.perf_counter() - begin)
                    counts.append(len(chunk.token_ids))
            completion = stream.completion
    except ServingError as failure:
        error = f"{failure.reason}: {failure}"
    record = Record(
        workload=item.prompt.workload,
        index=item.prompt.index,
        turn=turn,
        sent_s=sent_s,
        scheduled_s=sent_s if item.scheduled_s is None else item.scheduled_s,
        token_times_s=tuple(times),
        token_counts=tuple(counts),
        end_s=time.perf_counter() - begin,
        error=error or (None if times else "NO_TOKENS: the stream ended without a token"),
    )
    return (with_statistics(record, completion) if completion else record), completion


def settings(item: Item, plan: Plan) -> RequestArgs:
    return RequestArgs(
        mode=plan.mode,
        draft_tokens=plan.draft_tokens,
        max_tokens=min(plan.max_tokens, WARM_UP_TOKENS) if item.warm_up else plan.max_tokens,
        ignore_eos=plan.ignore_eos or None,
        timeout_s=plan.timeout_s,
        temperature=0.0,
    )


def with_statistics(record: Record, completion: Completion) -> Record:
    """Adds what the server says of the request."""
    did, times = completion.speculation, completion.timings
    return replace(
        record,
        prompt_tokens=completion.prompt_tokens,
        finish_reason=completion.finish_reason,
        answer=hashlib.sha256(repr(completion.token_ids).encode()).hexdigest()[:16],
        mode=did.mode,
        width=did.width,
        verify_steps=did.verify_steps,
        plain_steps=did.plain_steps,
        step_tokens=did.step_tokens,
        proposed_tokens=did.proposed_tokens,
        accepted_tokens=did.accepted_tokens,
        accepted_by_position=did.accepted_by_position,
        queue_ms=times.queue_ns / 1e6,
        verify_ms=times.verify_ns / 1e6,
        draft_ms=times.draft_ns / 1e6,
    )
