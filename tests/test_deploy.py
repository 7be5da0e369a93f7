"""The deployment files name what there is: paths, options, settings, one another."""

import configparser
import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from tanbr.cli import app
from tanbr.serve.config import ServeConfig, StartConfig

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, lines that go on joined."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in whole.splitlines() if line)]


def options_of_serve() -> set[str]:
    command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {name for parameter in command.params for name in parameter.opts}


def check_serve(words: list[str]) -> None:
    """Whether a command line is `serve` with options that there are."""
    assert words[0] == "serve"
    assert {word for word in words if word.startswith("--")} <= options_of_serve()


def test_the_image_copies_what_is_there_and_runs_what_there_is() -> None:
    found = instructions()
    assert {name for name, _ in found} <= {
        "FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"
    }  # fmt: skip
    for name, rest in found:
        if name == "COPY":
            *sources, _ = rest.split()
            assert all((ROOT / source).exists() for source in sources), rest
    copied = " ".join(rest for name, rest in found if name == "COPY")
    (install,) = [rest for name, rest in found if name == "RUN"]
    for needed in re.findall(r"--constraint (\S+)", install):
        assert needed in copied
    extras = re.search(r'"\.\[([a-z,]+)\]"', install)
    assert extras
    project = (ROOT / "pyproject.toml").read_text()
    assert all(re.search(rf"^{extra} = \[", project, re.M) for extra in extras[1].split(","))
    assert all(name in copied for name in re.findall(r'(?:readme|license-files) = \[?"([^"]+)"', project))
    commands = dict(found)
    assert yaml.safe_load(commands["ENTRYPOINT"]) == ["tanbr"]
    check_serve(yaml.safe_load(commands["CMD"]))


def test_the_unit_runs_what_there_is() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment]
    unit.read(DEPLOY / "tanbr.service")
    assert unit.sections() == ["Unit", "Service", "Install"]
    program, *words = shlex.split(unit["Service"]["ExecStart"])
    assert Path(program).name == "tanbr"
    check_serve(words)
    assert "--ray" not in words  # a plain install has no extra
    state = words[words.index("--state") + 1]
    assert state.startswith(f"/var/lib/{unit['Service']['StateDirectory']}/")  # the one place it may write to


def test_ray_serves_configuration_has_settings_that_there_are() -> None:
    config = yaml.safe_load((DEPLOY / "ray-serve.yaml").read_text())
    (application,) = config["applications"]
    assert application["import_path"] == "tanbr.fleet.ray:app"
    source = (ROOT / "src/tanbr/fleet/ray/config.py").read_text()  # read, not imported: that takes Ray
    fields = set(re.findall(r"^    (\w+): ", source, re.M)) | set(StartConfig.model_fields)
    assert set(application["args"]) <= fields
    ServeConfig.model_validate(application["args"]["serve"])


def test_the_manifests_parts_name_one_another_rightly() -> None:
    parts: list[Any] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    named = {(part["kind"], part["metadata"]["name"]) for part in parts}
    service, inner = (part for part in parts if part["kind"] == "Service")
    assert [port["name"] for port in service["spec"]["ports"]] == [
        "http"
    ]  # whoever reaches Ray's port may run anything
    for part in parts:
        if part["kind"] not in ("StatefulSet", "Deployment"):
            continue
        pod = part["spec"]["template"]
        assert part["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
        for container in pod["spec"]["containers"]:
            assert "livenessProbe" in container
            assert "memory" in container["resources"]["limits"]
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            for variable in container.get("env", []):
                key = variable["valueFrom"]["secretKeyRef"]
                assert ("Secret", key["name"]) in named
            for line in container["args"]:
                if found := re.search(r"tanbr (serve .*)", line):
                    check_serve(shlex.split(found[1]))
    head = next(part for part in parts if part["kind"] == "StatefulSet")
    assert head["spec"]["serviceName"] == inner["metadata"]["name"]
    assert service["spec"]["selector"] == inner["spec"]["selector"] == head["spec"]["template"]["metadata"]["labels"]
    ports = {port["containerPort"] for port in head["spec"]["template"]["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for one in (service, inner) for port in one["spec"]["ports"]} <= ports
    worker = next(part for part in parts if part["kind"] == "Deployment")
    address = worker["spec"]["template"]["spec"]["containers"][0]["args"][2]
    assert address == f"{inner['metadata']['name']}:6379"
