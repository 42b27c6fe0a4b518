"""Faults of drafts, by name: each makes of one right answer what a broken draft would send."""

import random
import time
from collections.abc import Callable, Iterator
from typing import Final

from domino_serve.v1 import draft_pb2
from tests.chaos.faulty_draft import Fault
from tests.recorded_models import VOCAB

Response = draft_pb2.StepResponse
EVERY: Final = 3  # answers pass unharmed between two faults, so that drafting goes on

INVALID = draft_pb2.SESSION_ERROR_REASON_INVALID
ERRORS = [value for value in draft_pb2.SessionErrorReason.values() if value]


def changed(change: Callable[[Response], None]) -> Fault:
    """`change` is done to every third answer that has proposals."""
    count = 0

    def fault(answer: Response) -> Iterator[Response]:
        nonlocal count
        count += any(result.proposals.ids for result in answer.results)
        if count % EVERY == 2:
            change(answer)
        yield answer

    return fault


def every_result(change: Callable[[draft_pb2.SessionResult], None]) -> Fault:
    def change_all(answer: Response) -> None:
        for result in answer.results:
            change(result)

    return changed(change_all)


def other_ids(result: draft_pb2.SessionResult) -> None:
    """In range and wrong: only the target can tell."""
    ids = [(id_ + 1) % VOCAB for id_ in result.proposals.ids]
    result.proposals.ids[:] = ids


def an_error(result: draft_pb2.SessionResult) -> None:
    result.error.reason = random.Random(result.session).choice(ERRORS)


def set_ids(*ids: int) -> Callable[[draft_pb2.SessionResult], None]:
    return lambda result: result.proposals.ids.__setitem__(slice(None), ids)


def set_kv_len(by: int) -> Callable[[draft_pb2.SessionResult], None]:
    def change(result: draft_pb2.SessionResult) -> None:
        result.proposals.draft_kv_len += by

    return change


def older_step(result: draft_pb2.SessionResult) -> None:
    result.step = max(result.step - 1, 0)


def other_session(result: draft_pb2.SessionResult) -> None:
    result.session += 1


def swapped(answer: Response) -> None:
    """Everybody gets the next one's proposals."""
    ids = [list(result.proposals.ids) for result in answer.results]
    for result, other in zip(answer.results, ids[1:] + ids[:1], strict=True):
        if result.HasField("proposals"):
            result.proposals.ids[:] = other


def many_results(answer: Response) -> None:
    answer.results.extend([draft_pb2.SessionResult(session=9)] * 1000)


def set_number(by: int) -> Callable[[Response], None]:
    def change(answer: Response) -> None:
        answer.sequence_number += by

    return change


def twice(answer: Response) -> Iterator[Response]:
    yield answer
    yield answer


def late() -> Fault:
    """Each third answer comes long after the step budget."""
    count = 0

    def fault(answer: Response) -> Iterator[Response]:
        nonlocal count
        count += 1
        if count % EVERY == 2:
            time.sleep(0.1)
        yield answer

    return fault


def reordered() -> Fault:
    """The first answer is held back behind the second, for which it is then too old."""
    held: list[Response] = []

    def fault(answer: Response) -> Iterator[Response]:
        if not held:
            held.append(answer)
            return
        yield answer
        yield held[0]

    return fault


def flood(answer: Response) -> Iterator[Response]:
    for _ in range(10_000):
        yield answer


def crash(answer: Response) -> Iterator[Response]:
    raise RuntimeError("a bug of the draft's")
    yield


FAULTS: Final[dict[str, Callable[[], Fault]]] = {
    "ids of another vocabulary": lambda: every_result(set_ids(VOCAB, -1, 2**63 - 1)),
    "negative ids": lambda: every_result(set_ids(-(2**63))),
    "too many ids": lambda: every_result(set_ids(*[1] * 5000)),
    "no ids": lambda: every_result(set_ids()),
    "wrong ids": lambda: every_result(other_ids),
    "an error": lambda: every_result(an_error),
    "an older length": lambda: every_result(set_kv_len(-1)),
    "a longer length": lambda: every_result(set_kv_len(1)),
    "an older step": lambda: every_result(older_step),
    "another session": lambda: every_result(other_session),
    "no results": lambda: changed(lambda answer: answer.ClearField("results")),
    "an empty answer": lambda: changed(lambda answer: answer.Clear()),
    "swapped sessions": lambda: changed(swapped),
    "many results": lambda: changed(many_results),
    "an older message": lambda: changed(set_number(-1)),
    "a newer message": lambda: changed(set_number(1)),
    "every answer twice": lambda: twice,
    "late answers": late,
    "reordered answers": reordered,
    "a flood": lambda: flood,
    "a crash": lambda: crash,
}
