from importlib import metadata

import pytest

import tanbr
from tanbr.cli import machine


def test_what_is_installed_is_found_with_its_version() -> None:
    found = machine.examine()
    assert found.facts["tanbr"] == tanbr.__version__
    assert {package.name: package.version for package in found.packages}["numpy"] == metadata.version("numpy")
    assert int(found.facts["cores"]) >= 1
    assert not found.broken


def test_what_is_missing_is_named_with_the_command_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", {"no-such-package": "serve", "numpy": machine.EVERY})
    found = machine.examine()
    assert found.missing == ["no-such-package, for serve: pip install 'no-such-package'"]
    assert found.broken


def test_a_missing_extra_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PACKAGES", {"no-such-package": "--data hub"})
    monkeypatch.setattr(machine, "OPTIONAL", {"no-such-package": "tanbr[hub]"})
    found = machine.examine()
    assert found.missing == ["no-such-package, for --data hub: pip install 'tanbr[hub]'"]
    assert not found.broken
