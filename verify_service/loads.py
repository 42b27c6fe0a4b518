"""How busy the engine is, read from outside its thread: a moment's figures, not a snapshot."""

from collections import Counter

from domino_serve.v1 import verify_pb2
from verify_service.draft_links import DraftLinks
from verify_service.draft_recovery import DraftRecovery
from verify_service.engine import Engine


def loads(
    engine: Engine, links: DraftLinks, recovery: DraftRecovery
) -> verify_pb2.GetLoadsResponse:
    """Batch, queue, pages and draft links."""
    scheduler = engine.scheduler
    running = list(scheduler.running)
    drafts = [sequence.draft for sequence in [*running, *scheduler.waiting]]
    sessions = Counter(id(draft.plan.link) for draft in drafts if draft)
    pages = scheduler.allocator
    by_graph, eagerly = engine.executed()
    return verify_pb2.GetLoadsResponse(
        running=len(running),
        waiting=max(engine.num_live() - len(running), 0),
        kv_pages_used=pages.num_pages - pages.num_free,
        kv_pages_total=pages.num_pages,
        page_size=scheduler.page_size,
        waiting_for_draft=len(recovery),
        idle_checks=engine.idle_checks,
        graph_steps=by_graph,
        eager_steps=eagerly,
        draft_links=[
            verify_pb2.DraftLinkLoad(
                address=address,
                alive=link.alive,
                sessions=sessions[id(link)],
                late_answers=link.late_answers,
                data_plane=link.plane,
            )
            for address, link in links.items()
        ],
    )
