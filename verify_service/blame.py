"""A pass that raises: finds the items it raises for, so that only their requests end.

Called by verify_service.engine in place of the executor. Running positions anew writes the same KV.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial

from serving.errors import InternalError
from verify_service.executor import Executor
from verify_service.scheduler import Work
from verify_service.sequence import Chosen, Event, Request, Sequence

RAISED = Chosen(ids=[], usable=False)

log = logging.getLogger(__name__)


def start(executor: Executor, work: Seq[Work]) -> Callable[[], list[Chosen]]:
    """As Executor.start; RAISED stands for items that no pass can run.

    What it gives raises where no item is to blame: ranks are in the midst of a pass that cannot be
    run anew, or the executor cannot run anything any more.
    """
    try:
        answer = executor.start(work)
    except Exception as error:
        return partial(_apart, executor, work, error)

    def read() -> list[Chosen]:
        try:
            return answer()
        except Exception as error:
            return _apart(executor, work, error)

    return read


def fault(item: Work, chosen: Chosen) -> InternalError:
    """Why the item's request ends, where what was chosen is not usable."""
    if chosen is RAISED:
        return InternalError()
    end = item.start + len(item.ids)
    return InternalError(
        f"the target's logits are NaN or infinite at or before position {end - 1}: its weights "
        "are damaged or overflow in this dtype; other requests are unaffected"
    )


def _apart(executor: Executor, work: Seq[Work], error: Exception) -> list[Chosen]:
    if not executor.can_run_anew or not work:
        raise error
    log.error("a pass over %d requests failed, parts of it are tried", len(work), exc_info=error)
    errors = [error]  # as the engine's `broken_by` where the probe raises
    found = _by_halves(executor, work, errors)
    if all(chosen is RAISED for chosen in found):
        executor.run([_probe(work[0])])
    return found


def _by_halves(executor: Executor, work: Seq[Work], errors: list[Exception]) -> list[Chosen]:
    try:
        return executor.run(work)
    except Exception as error:
        errors.append(error)
        if len(work) == 1:
            return [RAISED]
    middle = len(work) // 2
    halves = work[:middle], work[middle:]
    return [chosen for half in halves for chosen in _by_halves(executor, half, errors)]


def _probe(failed: Work) -> Work:
    """One token at the start of a page whose owner ends: a sound executor runs it."""
    request = Request(
        request_id="probe", prompt_ids=[0], max_tokens=1, stop_ids=frozenset(), emit=_nobody
    )
    return Work(sequence=Sequence(request, pages=failed.sequence.pages), ids=[0], choices=1)


def _nobody(event: Event) -> None:
    """Events of a probe are for nobody."""
