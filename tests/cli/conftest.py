import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.running import Mistake
from serve.web.fake import FakeService
from serve.web.live import BOTH, live
from tanbr.cli import main


@pytest.fixture(scope="module")
def service() -> FakeService:
    return FakeService()


@pytest.fixture(scope="module")
def url(service: FakeService) -> Iterator[str]:
    """Address of a server that asks for tokens."""
    with live(service, tokens=BOTH) as address:
        yield address


@pytest.fixture
def mistake(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Mistake:
    """Run a command that fails, in this process; its one sentence. It exits with 2, and leaves no file behind."""

    def run(*arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["tanbr", *arguments])
        monkeypatch.setattr("sys.stdin", io.StringIO())
        monkeypatch.setattr("tanbr.cli.on_signals", lambda: None)  # those of this process are pytest's
        monkeypatch.setenv("TANBR_SERVER", "http://127.0.0.1:9")
        before = sorted(tmp_path.iterdir())
        with pytest.raises(SystemExit) as left:
            main()
        error = capsys.readouterr().err
        assert left.value.code == 2
        assert error.count("\n") == 1
        assert sorted(tmp_path.iterdir()) == before
        return error

    return run
