import sys
from pathlib import Path

import pytest

from tanbr.errors import ConfigError
from tanbr.lab import settings
from tanbr.lab.settings import Config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[pretrain]\nstep = 7", "unknown key 'pretrain.step'; did you mean 'steps'"),
        ("[nonsense]\na = 1", "unknown key 'nonsense'; known keys: router"),
        ("[pretrain]\nsteps = 0", "pretrain.steps.*greater than or equal to 1.*got 0"),
        ("[serve.rewards]\nfeedback = inf", r"serve\.rewards\.feedback: .*finite number"),
        ("[serve]\nqueue = true", r"serve\.queue: .*valid integer"),
        (f"[serve]\nqueue = {'9' * 5_000}", "is not TOML: .*digits"),
        ("[pretrain", "is not TOML"),
        ('[serve]\nprecision = "int4"', r"serve\.precision"),
        (f"a = {'[' * 5_000}{']' * 5_000}", "nested too deeply"),
        (f"nonsense{'.a' * 5_000} = 1", "unknown key 'nonsense'"),
    ],
)
def test_a_mistake_is_one_sentence_that_names_it(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        settings.load(tmp_path / "t.toml")


def test_a_file_does_not_import_what_it_names_as_merge_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap_of_a_file.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "t.toml").write_text('[serve]\nmethod = "trap_of_a_file:Kind:gain=2"\n')
    with pytest.raises(ConfigError, match=r"t\.toml: .*--method"):
        settings.load(tmp_path / "t.toml")
    assert "trap_of_a_file" not in sys.modules
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        settings.load(tmp_path / "none.toml")


def test_a_file_is_laid_over_another_configuration_field_by_field(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[pretrain]\nsteps = 7\n[router.default]\nbeta = 1.5\n")
    base = settings.parse({"pretrain": {"batch": 6}, "router": {"default": {"change": 5.0}}})
    loaded = settings.load(tmp_path / "t.toml", over=base)
    assert (loaded.pretrain.steps, loaded.pretrain.batch) == (7, 6)
    assert (loaded.router.default.beta, loaded.router.default.change) == (1.5, 5.0)


def test_the_defaults_as_toml_read_back_equal_and_say_what_each_field_is(tmp_path: Path) -> None:
    changed = settings.parse({"http": {"host": 'a "b"'}, "serve": {"slot_seconds": 0.1, "low_memory": True}})
    for config in (Config(), changed):
        (tmp_path / "t.toml").write_text(settings.to_toml(config))
        assert settings.load(tmp_path / "t.toml") == config
    text = settings.to_toml(Config())
    assert "# Most texts in a batch.\nbatch = 32\n" in text
    assert "# slot_requests = (not set)\n" in text
