"""Greedy acceptance against every case of a small alphabet."""

from itertools import product

from verify_service.accept import accept


def test_the_longest_common_prefix_is_accepted() -> None:
    """One proposal too many changes the output; one too few costs the speed."""
    for length in range(5):
        for proposals in product("ab", repeat=length):
            for choices in product("ab", repeat=length + 1):
                accepted = accept([ord(x) for x in proposals], [ord(x) for x in choices])
                agreeing = [k for k in range(length + 1) if proposals[:k] == choices[:k]]
                assert accepted == max(agreeing)
