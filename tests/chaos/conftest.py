"""What the short forms share: requests with known answers, and a tokenizer for the routers."""

from pathlib import Path

import pytest

from tests.chaos.tokenizer import save_tokenizer
from tests.chaos.traffic import Case, known_cases


@pytest.fixture(scope="session")
def cases() -> list[Case]:
    return known_cases(8, 7, max_tokens=60)


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))
