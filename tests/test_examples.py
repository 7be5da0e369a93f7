"""The answers that the docs' own examples get are right."""

import re
from pathlib import Path

from tanbr.serve.build import build
from tanbr.serve.config import ServeConfig

SERVING = Path(__file__).parent.parent / "docs" / "serving.md"


def test_the_text_that_the_docs_send_is_answered_rightly(tmp_path: Path) -> None:
    texts = re.findall(r'tanbr send "([^"]+)" --feedback 1', SERVING.read_text())
    assert texts
    service = build(None, config=ServeConfig(threads=1), state=tmp_path / "state")
    service.start()
    try:
        answered = service.submit(texts).result()
    finally:
        service.stop()
    labels = [service.info.columns[row[: service.info.classes].argmax()] for row in answered.logits]
    assert labels == ["positive"] * len(texts)
