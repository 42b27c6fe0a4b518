"""Whether blocks that began early are those that a message asks for; both sides of a stream ask."""

from collections.abc import Mapping, Sequence

from domino_serve.v1 import draft_pb2


def covers(
    request: draft_pb2.StepRequest,
    *,
    places: Mapping[int, int],
    starts: Sequence[int],
    taken: Sequence[tuple[int, int]],
    count: int,
) -> bool:
    """places: of sessions among the others, which say of each where its context ended, how many
    rows it was given then and its current token. count: proposals that were begun for each."""
    if request.opens:
        return False
    for step in request.steps:
        place = places.get(step.session)
        if place is None or starts[place] != step.rows_start:
            return False
        rows, current = taken[place]
        if rows != step.num_rows:
            return False
        if step.HasField("current") and (step.current != current or step.draft_tokens > count):
            return False
    return True
