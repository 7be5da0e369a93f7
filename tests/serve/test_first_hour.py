"""What a new user types: experts and rows, no settings. Untagged requests earn nearly what the experts do."""

from pathlib import Path

import numpy as np

from tanbr.lab.corpus import Dataset
from tanbr.lab.tasks.traffic import Traffic, mixes
from tanbr.serve.build import build
from tanbr.serve.config import ServeConfig
from tanbr.serve.records import Feedback
from tanbr.serve.service import Service

SLOTS, REQUESTS = 6, 64


def earned(service: Service) -> float:
    """Serve a drifting stream, with a reward for every answer."""
    source = Dataset()
    stream = Traffic(
        pools=source.dev(), requests=REQUESTS, seed=0,
        mixes=mixes("dirichlet", tasks=len(source.tasks), slots=SLOTS, seed=0, alpha=5.0, period=SLOTS),
    )  # fmt: skip
    service.start()
    means = []
    for slot in stream:
        answered = service.submit([row.text for row in slot.rows]).result(60)
        assert service.space is not None
        rewards = service.space.rewards(slot.rows, service.space.read(slot.rows, answered.logits))
        pairs = zip(answered.request_ids, rewards, strict=True)
        assert service.feedback([Feedback(name, float(reward)) for name, reward in pairs]).accepted == REQUESTS
        service.end_slot()
        means.append(rewards.mean())
    assert not [view for view in service.versions() if not view.good]  # no rollback
    assert service.stop()
    return float(np.mean(means))


def test_the_default_keeps_what_the_experts_earn_and_more_than_a_plain_average(tmp_path: Path) -> None:
    quiet = ServeConfig(slot_seconds=3600.0, threads=1)
    default = earned(build(None, config=quiet, state=tmp_path / "default", check=True))
    unmerged = earned(build(None, config=quiet.model_copy(update={"unmerged": True}), state=tmp_path / "unmerged"))
    plain = quiet.model_copy(update={"blend": "even", "method": "average", "explore": "never"})
    average = earned(build(None, config=plain, state=tmp_path / "average"))
    assert default > 0.93 * unmerged
    assert default > average + 0.1
