"""Page allocation under random use."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domino_kernels.paged_kv import OutOfPagesError, PageAllocator


@given(st.lists(st.one_of(st.integers(1, 5), st.none()), max_size=60))
def test_pages_are_never_shared_or_lost(actions: list[int | None]) -> None:
    """A page with two owners mixes two requests' keys; a lost one shrinks the cache for good."""
    allocator, held = PageAllocator(12), list[list[int]]()
    for action in actions:
        if action is None:
            if held:
                allocator.release(held.pop(len(held) // 2))
        elif allocator.can_allocate(action):
            held.append(allocator.allocate(action))
            assert len(held[-1]) == action
        else:
            with pytest.raises(OutOfPagesError):
                allocator.allocate(action)
        pages = [page for pages in held for page in pages]
        assert len(set(pages)) == len(pages) == 12 - allocator.num_free
        assert set(pages) <= set(range(12))


def test_a_run_is_preferred_to_scattered_pages() -> None:
    """Runs are read without copying; taking scattered pages first would lose that."""
    allocator = PageAllocator(8)
    first, second = allocator.allocate(2), allocator.allocate(1)
    allocator.release(first)
    assert second == [2]
    assert allocator.allocate(4) == [3, 4, 5, 6]
    assert allocator.allocate(3) == [0, 1, 7]
