"""The router's fixtures."""

from tests.router.services import module_services, services, target

__all__ = ["module_services", "services", "target"]
