"""The deployment files run commands and settings that there are, and open no more than they say."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from tanbr.cli import app
from tanbr.serve.config import ServeConfig, StartConfig

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
COMMANDS = {  # file → where its command line is
    "Dockerfile": r"^CMD \[(.*)\]",
    "tanbr.service": r"^ExecStart=\S+/tanbr (.*)",
    "kubernetes.yaml": r"exec tanbr (.*)",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_server_is_started_with_options_that_there_are(name: str) -> None:
    [line] = re.findall(COMMANDS[name], (DEPLOY / name).read_text(), re.MULTILINE)
    command, *words = shlex.split(line.replace(",", " "))
    assert command == "serve"
    options = get_command(app).commands["serve"].params  # type: ignore[attr-defined]
    known = {name for option in options for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_the_units_state_lies_in_the_one_place_that_it_may_write_to() -> None:
    unit = (DEPLOY / "tanbr.service").read_text()
    directory, state = (re.findall(pattern, unit)[0] for pattern in (r"StateDirectory=(\S+)", r"--state (\S+)"))
    assert state.startswith(f"/var/lib/{directory}/")


def test_ray_serves_configuration_has_settings_that_there_are() -> None:
    config = yaml.safe_load((DEPLOY / "ray-serve.yaml").read_text())
    (application,) = config["applications"]
    assert application["import_path"] == "tanbr.fleet.ray:app"
    source = (ROOT / "src/tanbr/fleet/ray/learner.py").read_text()  # read, not imported: that takes Ray
    fields = set(re.findall(r"^    (\w+): ", source, re.M)) | set(StartConfig.model_fields)
    assert set(application["args"]) <= fields
    ServeConfig.model_validate(application["args"]["serve"])


def test_a_cluster_opens_its_web_port_alone_and_limits_memory() -> None:
    parts: list[Any] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    service = next(part for part in parts if part["kind"] == "Service")
    assert [port["name"] for port in service["spec"]["ports"]] == ["http"]  # a client of Ray's port may run anything
    pods = [part["spec"]["template"]["spec"] for part in parts if part["kind"] in ("StatefulSet", "Deployment")]
    assert len(pods) == 2
    assert all("memory" in one["resources"]["limits"] for pod in pods for one in pod["containers"])
