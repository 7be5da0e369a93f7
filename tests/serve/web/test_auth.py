from pathlib import Path

import pytest

from serve.web.fake import FakeService
from serve.web.live import ADMIN_TOKEN, BOTH, TOKEN, client, live, refusal
from tanbr.errors import ConfigError
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
            assert http.post(f"/v1/admin/{name}").status_code == 403
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
    assert repr(tokens) == "Tokens()"
    for text, says in (
        ("short", "at least 16"),
        ("with a space in the middle", "without spaces"),
        ("ключ" * 8, "ASCII"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=says):
            Tokens.read({}, token_file=file)
    with pytest.raises(ConfigError, match="cannot read the token"):
        Tokens.read({}, token_file=tmp_path / "none")
    with pytest.raises(ConfigError, match="TANBR_TOKEN must hold"):
        Tokens.read({"TANBR_TOKEN": ""})
