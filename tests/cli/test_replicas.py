import sys

import pytest

from cli.running import Mistake


def test_without_ray_one_sentence_says_what_to_install(mistake: Mistake, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("ray.", "tanbr.fleet.ray"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    says = mistake("serve", "--ray")
    assert 'serving on Ray needs Ray Serve: pip install "tanbr[ray]"' in says


@pytest.mark.parametrize("arguments", [("--replicas", "2"), ("--ray-address", "somewhere:1")])
def test_replicas_are_of_ray(mistake: Mistake, arguments: tuple[str, str]) -> None:
    assert "give --ray as well" in mistake("serve", *arguments)


def test_an_engine_is_not_served_by_replicas(mistake: Mistake) -> None:
    arguments = ("--ray", "--engine", "vllm", "--engine-url", "http://127.0.0.1:1")
    assert "--ray and --engine do not go together" in mistake("serve", *arguments)
