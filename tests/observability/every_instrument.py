"""Every instrument of the project: importing the services' metrics modules declares them."""

import draft_service.metrics
import router.metrics
import verify_service.metrics
import verify_service.speculation
from serving.metrics import INSTRUMENTS, Instrument

MODULES = (
    draft_service.metrics,
    router.metrics,
    verify_service.metrics,
    verify_service.speculation,
)
PREFIX = "domino_"


def every_instrument() -> dict[str, Instrument]:
    """By name, without those of tests."""
    return {name: found for name, found in INSTRUMENTS.items() if name.startswith(PREFIX)}
