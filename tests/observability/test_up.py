"""`domino-serve up` gives each service a metrics port."""

from pathlib import Path

import pytest

from domino_cli.stack import StackConfig
from draft_service.config import DraftServiceConfig
from router.config import RouterConfig
from serving.options import parse
from serving.service_options import ServiceOptions
from verify_service.config import VerifyConfig

CONFIG = StackConfig(target=Path("t"), draft=Path("d"), metrics_port=9100)
ADDRESSES = {"verify": "127.0.0.1:1", "draft": "127.0.0.1:2"}


@pytest.mark.parametrize(
    ("cls", "flags", "port"),
    [
        (RouterConfig, CONFIG.router_flags(ADDRESSES), 9100),
        (VerifyConfig, CONFIG.verify_flags(), 9101),
        (DraftServiceConfig, CONFIG.draft_flags(), 9102),
    ],
)
def test_each_service_has_a_page_of_its_own(
    cls: type[ServiceOptions], flags: list[str], port: int
) -> None:
    """Prevents two services that ask for one port, or an option that a service does not know."""
    config = parse(cls, flags, prog="service", description="A service.")
    assert config.metrics_port == port
