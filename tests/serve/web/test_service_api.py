"""The fake of these tests and the real service are what the web layer takes them for."""

import inspect

import pytest

from serve.web.fake import FakeService
from tanbr.serve.service import Service
from tanbr.serve.web.service_api import ServiceApi

METHODS = [
    name for name, member in vars(ServiceApi).items() if inspect.isfunction(member) and not name.startswith("_")
]  # fmt: skip
PROPERTIES = [name for name, member in vars(ServiceApi).items() if isinstance(member, property)]


def test_the_fake_is_a_service() -> None:
    assert isinstance(FakeService(), ServiceApi)
    assert {"submit", "generate", "feedback", "faults", "stop"} <= set(METHODS)
    assert set(PROPERTIES) == {"ready", "info", "client_secret"}


@pytest.mark.parametrize("kind", [Service, FakeService])
@pytest.mark.parametrize("name", METHODS)
def test_signatures_agree(name: str, kind: type) -> None:
    wanted, there = (inspect.signature(getattr(one, name)) for one in (ServiceApi, kind))
    assert str(there).replace("'", "") == str(wanted).replace("'", "")


@pytest.mark.parametrize("name", PROPERTIES)
def test_the_real_service_has_the_properties(name: str) -> None:
    there = getattr(Service, name)
    assert isinstance(there, property)
    assert inspect.signature(there.fget) == inspect.signature(getattr(ServiceApi, name).fget)  # type: ignore[arg-type]
