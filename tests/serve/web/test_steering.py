from typing import Any

import httpx2

from serve.web.fake import FakeService
from serve.web.live import ADMIN_TOKEN, refusal

AS_ADMIN = {"authorization": f"Bearer {ADMIN_TOKEN}"}


def test_operators_steer(http: httpx2.Client, service: FakeService) -> None:
    def admin(action: str, body: Any = None) -> httpx2.Response:
        return http.post(f"/v1/admin/{action}", json=body, headers=AS_ADMIN)

    assert admin("pin", {"merge_version": 2}).json() == {"slot": 30, "merge_version": 3, "pinned": True}
    assert admin("unpin").json()["pinned"] is False
    assert admin("pin", {"blend": [0.5, 0.5, 0, 0]}).json()["pinned"] is True
    assert service.calls[-1] == ("pin", [0.5, 0.5, 0.0, 0.0])
    assert admin("unpin").json()["pinned"] is False
    assert admin("rollback", {"merge_version": 3}).json()["merge_version"] == 3
    assert service.calls[-1] == ("rollback", 3)
    assert admin("slot").json()["slot"] == 30
    assert service.calls[-1] == ("end_slot",)
    for action, body, says in (
        ("rollback", {"merge_version": 99}, "there is no merge version 99 to serve; the last is 3"),
        ("rollback", {"merge_version": -1}, "merge_version must be greater than or equal to 0"),
        ("pin", {"blend": [0.5, 0.5, 0.5, 0]}, "blend must sum to 1 (got 1.5); divide it by its sum"),
        ("pin", {}, "merge_version is missing"),
        ("pin", {"blend": [1, 0, 0, 0], "merge_version": 1}, "merge_version is not known here"),
        ("pin", [1], "the body must be an object with blend or merge_version"),
    ):
        answer = admin(action, body)
        assert (answer.status_code, refusal(answer)) == (422, says)
    assert admin("rollback").json()["merge_version"] == 2  # no body: the one before
    service.version = 3
