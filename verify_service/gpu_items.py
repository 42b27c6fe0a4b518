"""What a step's graph can do for an item of work."""

from verify_service.scheduler import Work


def fits_graph(item: Work, width: int) -> bool:
    """Whether a graph of that width runs the item: all its ids need the target's choice."""
    return item.choices == len(item.ids) <= width


def chosen_in_graph(item: Work) -> bool:
    """Whether a graph makes all of the item's choices: every id allowed, nothing told of them."""
    request = item.sequence.request
    masks = request.stop_ids and request.min_tokens > item.sequence.num_generated
    return not item.sequence.wants_logprobs and not masks
