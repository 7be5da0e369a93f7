import io
import json
import logging
from pathlib import Path

import httpx2
import pytest

from serve.web.fake import FakeService
from serve.web.live import ADMIN_TOKEN, BOTH, TOKEN, client, live, refusal
from tanbr.errors import ConfigError
from tanbr.serve.web import logs
from tanbr.serve.web.auth import Tokens

ONE = {"inputs": ["a"]}


def test_tokens_open_what_they_should() -> None:
    with live(FakeService(), tokens=BOTH) as url, client(url) as nobody:
        for path in ("/", "/healthz", "/readyz", "/dashboard/app.js"):
            assert nobody.get(path).status_code == 200
        for headers in (
            {},
            {"authorization": "Bearer"},
            {"authorization": f"Basic {TOKEN}"},
            {"authorization": f"Bearer {TOKEN}x"},
            {"authorization": "Bearer ÿ".encode("latin-1")},
            {"authorization": TOKEN},
        ):
            for path in ("/v1/state", "/v1/slots", "/metrics", "/openapi.json", "/v1/models", "/nowhere"):
                answer = nobody.get(path, headers=headers)
                assert (answer.status_code, refusal(answer)) == (401, "send a token as `Authorization: Bearer …`")
                assert answer.headers["www-authenticate"].startswith("Bearer")
        with client(url, TOKEN) as somebody, client(url, ADMIN_TOKEN) as operator:
            assert somebody.post("/v1/classify", json=ONE).status_code == 200
            refused = somebody.post("/v1/admin/slot")
            assert refused.status_code == 401
            assert "administration token" in refusal(refused)
            assert operator.post("/v1/admin/slot").status_code == 200
            assert operator.post("/v1/classify", json=ONE).status_code == 200


def test_administration_without_a_token_is_off() -> None:
    with live(FakeService(), tokens=Tokens()) as url, client(url, "x" * 40) as http:
        answer = http.post("/v1/admin/slot")
        assert answer.status_code == 403
        assert refusal(answer).startswith("administration is off")
        assert http.post("/v1/classify", json=ONE).status_code == 200


@pytest.mark.parametrize("root_path", ["", "/tanbr", "/v1"])
def test_a_root_path_opens_nothing_and_closes_nothing(root_path: str) -> None:
    service = FakeService()
    with live(service, tokens=Tokens(), root_path=root_path) as url, client(url) as http:
        for name in ("unpin", "rollback", "slot", "pin"):
            answer = http.post(f"/v1/admin/{name}")
            assert (answer.status_code, refusal(answer)[:21]) == (403, "administration is off")
        assert service.calls == []
    with live(service, tokens=BOTH, root_path=root_path, rate=0.001, burst=1) as url, client(url) as http:
        for _ in range(3):
            assert http.get("/healthz").status_code == 200  # without a token, whatever the rate
        assert http.get("/").status_code == 200
        assert http.get("/").status_code == 429


def test_tokens_are_read_from_files_and_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    tokens = Tokens.read({"TANBR_ADMIN_TOKEN": ADMIN_TOKEN}, token_file=file)
    assert tokens == BOTH
    assert TOKEN not in repr(tokens)
    for text, says in (
        ("short", "at least 16"),
        ("with a space in the middle", "without spaces"),
        ("ключ" * 8, "ASCII"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=says) as refused:
            Tokens.read({}, token_file=file)
        assert text not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot read the token"):
        Tokens.read({}, token_file=tmp_path / "none")
    with pytest.raises(ConfigError, match="as --token-file; admin = true there"):
        Tokens.read({}, admin_token_file=tmp_path / "tokens.toml")
    with pytest.raises(ConfigError, match="TANBR_TOKEN must hold"):
        Tokens.read({"TANBR_TOKEN": ""})


LIST = f"""
[[client]]
name = "shop"
token = "{TOKEN}"

[[client]]
name = "desk"
token = "{ADMIN_TOKEN}"
admin = true
"""


def test_a_list_gives_each_client_a_name_which_logs_and_trust_show(tmp_path: Path) -> None:
    file, service, log = tmp_path / "tokens.toml", FakeService(), io.StringIO()
    file.write_text(LIST)
    file.chmod(0o600)
    logs.to_stream(log, level=logging.DEBUG)
    tokens = Tokens.read({}, token_file=file)
    item = {"feedback": [{"request_id": "r", "reward": 1}]}
    with live(service, tokens=tokens, proxies=("127.0.0.1",)) as url, client(url, TOKEN) as shop:
        assert httpx2.get(f"{url}/v1/state").status_code == 401
        assert shop.post("/v1/admin/slot").status_code == 401
        for address in ("192.0.2.1", "192.0.2.2"):  # a client is its name, wherever it is
            assert shop.post("/v1/feedback", json=item, headers={"x-forwarded-for": address}).status_code == 200
        with client(url, ADMIN_TOKEN) as desk:
            assert desk.post("/v1/admin/slot").status_code == desk.post("/v1/feedback", json=item).status_code == 200
    assert service.given_by == ["shop", "shop", "desk"]
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["by"] for line in lines if line["event"] == "admin"] == ["desk"]
    assert [line.get("name") for line in lines if line.get("route") == "/v1/feedback"] == ["shop", "shop", "desk"]
    for secret in (TOKEN, ADMIN_TOKEN):
        assert secret not in log.getvalue() + repr(tokens)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "shop"', "", "client.0.name: Field required; write"),
        ('name = "shop"', 'name = "a shop\\n"', "client.0.name: "),
        (TOKEN, ADMIN_TOKEN, "two clients have the same token"),
        (TOKEN, "short", "tokens.toml, shop must hold at least 16"),
        ("admin = true", "root = true", "client.1.root: Extra inputs"),
        (LIST, TOKEN, "is not TOML"),
    ],
)
def test_a_wrong_list_is_one_sentence_without_its_secrets(tmp_path: Path, old: str, new: str, says: str) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(LIST.replace(old, new))
    with pytest.raises(ConfigError, match=says) as refused:
        Tokens.read({}, token_file=file)
    assert not any(secret in str(refused.value) for secret in (TOKEN, ADMIN_TOKEN, "short"))
