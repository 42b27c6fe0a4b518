"""Limits of time that services of tests get: nothing is given up because a machine is slow.

A test whose subject is such a limit gives it; everywhere else a peer is lost by its end alone.
"""

from collections.abc import Mapping, Sequence
from typing import Final

NEVER_S: Final = 3600.0
CONNECT_S: Final = 60.0  # also of a draft that stands still

VERIFY: Final = {
    "draft_step_s": NEVER_S,
    "draft_timeout_s": NEVER_S,
    "draft_connect_s": CONNECT_S,
}
DRAFT: Final = {"ticket_ttl_s": NEVER_S}
ROUTER: Final = {"seat_timeout_s": CONNECT_S, "failover_s": NEVER_S}
LIMITS: Final[Mapping[str, Mapping[str, float]]] = {
    "verify_service": VERIFY,
    "draft_service": DRAFT,
    "domino_cli.one_process": {**VERIFY, **DRAFT},
    "router": ROUTER,
}


def patient(arguments: Sequence[str]) -> list[str]:
    """A service's module and flags, perhaps behind others, with LIMITS where it is given none."""
    module = next((part for part in arguments if part in LIMITS), "")
    given = {part.partition("=")[0] for part in arguments}
    flags = {f"--{name.replace('_', '-')}": limit for name, limit in LIMITS.get(module, {}).items()}
    more = [f"{flag}={limit:g}" for flag, limit in flags.items() if flag not in given]
    return [*arguments, *more]
