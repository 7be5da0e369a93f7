"""Settings that cannot be, and presets that can."""

import pytest
from pydantic import ValidationError

from tanbr.lab.tasks import glue
from tanbr.lab.train.config import FLAN_T5, MINILM, FinetuneConfig, PretrainConfig


@pytest.mark.parametrize("preset", [MINILM, FLAN_T5])
def test_a_preset_names_glues_tasks_and_saves_whole_entries_of_its_curve(preset: PretrainConfig) -> None:
    assert PretrainConfig.model_validate(preset.model_dump()) == preset
    assert {*preset.task_rows, *preset.ancestor_rows} <= {task.name for task in glue.TASKS}
    assert preset.save_every % preset.log_every == 0


@pytest.mark.parametrize(
    "wrong",
    [{"task_rows": {"CoLA": 0}}, {"mergeable": 1.5}, {"blend_alpha": 0}, {"frozen_layers": -1}, {"stepz": 3}],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PretrainConfig.model_validate(wrong)


def test_a_draw_needs_some_nearness() -> None:
    with pytest.raises(ValidationError, match="blend_nearness"):
        FinetuneConfig(blend_nearness=0)
