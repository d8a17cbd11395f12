from pathlib import Path

import pytest

from gateway.tokens.render import TokenizerSource
from tests.fakes.tokenizer import make_tokenizer


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def source(tokenizer_folder: Path) -> TokenizerSource:
    return TokenizerSource(str(tokenizer_folder))
