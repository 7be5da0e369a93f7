from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.fake_engine import FakeVllm
from engines.tiny_adapters import write_adapters
from serve.text_model import write
from tanbr.merge import Moe
from tanbr.merge import open as open_moe

EVEN = [0.25] * 4


@pytest.fixture(scope="session")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Moe:
    """A tiny Mixtral with its tokenizer."""
    return open_moe(write("mixtral", tmp_path_factory.mktemp("engines") / "moe"))


@pytest.fixture(scope="session")
def dense(mixtral: Moe) -> Path:
    """What an engine is started with: the even merge of it."""
    return mixtral.export(EVEN, mixtral.path.parent / "dense")


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Moe:
    """Four LoRA adapters over a tiny Mistral, of unequal ranks and targets."""
    return open_moe(**write_adapters(tmp_path_factory.mktemp("adapters")))


@pytest.fixture
def lora(adapters: Moe) -> Iterator[FakeVllm]:
    """A vLLM that runs the adapters' base, and takes adapters."""
    engine = FakeVllm(adapters.path)
    engine.takes_adapters, engine.dev_mode = True, False
    with engine.running():
        yield engine


@pytest.fixture
def vllm(dense: Path) -> Iterator[FakeVllm]:
    with FakeVllm(dense).running() as engine:
        yield engine
