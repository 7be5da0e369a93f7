"""Bearer tokens: where they come from, and what each opens."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tanbr.errors import ConfigError
from tanbr.serve.web.refusals import Refusal

TOKEN, ADMIN_TOKEN = "TANBR_TOKEN", "TANBR_ADMIN_TOKEN"
SHORTEST = 16

HEALTH = ("/healthz", "/readyz")  # need no token and count for no rate
OPEN = (*HEALTH, "/dashboard")  # and "/", the page itself, which holds no figures
ADMIN = "/v1/admin/"


@dataclass(frozen=True)
class Tokens:
    """What a client must show; only digests are kept, and they never appear in a traceback or a log."""

    general: bytes | None = field(default=None, repr=False)  # for everything; open to all if None
    admin: bytes | None = field(default=None, repr=False)  # for ADMIN (and the rest); closed to all if None

    @classmethod
    def read(
        cls, environment: Mapping[str, str], *, token_file: Path | None = None, admin_token_file: Path | None = None
    ) -> "Tokens":
        """Take each token from its file or its variable: never from the command line, which every user can list."""
        return cls(
            general=_token(environment, TOKEN, token_file), admin=_token(environment, ADMIN_TOKEN, admin_token_file)
        )

    def shown(self, authorization: str | None) -> Literal["", "general", "admin"]:
        """Say which token an Authorization header shows; nothing else in the header makes a difference."""
        scheme, _, word = (authorization or "").partition(" ")
        digest = _digest(word.strip()) if scheme.lower() == "bearer" else b""
        general, admin = (key is not None and hmac.compare_digest(digest, key) for key in (self.general, self.admin))
        return "admin" if admin else "general" if general else ""

    def check(self, route: str, authorization: str | None) -> None:
        """Refuse a request for a route, by its declared path ("" for none), that its header does not open."""
        admin = route.startswith(ADMIN)
        if route == "/" or route.startswith(OPEN) or (self.general is None and not admin):
            return
        if admin and self.admin is None:
            raise Refusal(403, f"administration is off: start the server with {ADMIN_TOKEN} set to allow it")
        if self.shown(authorization) not in (("admin",) if admin else ("general", "admin")):
            which = "the administration token" if admin else "a token"
            raise Refusal(
                401, f"send {which} as `Authorization: Bearer …`", headers={"www-authenticate": 'Bearer realm="tanbr"'}
            )


def _token(environment: Mapping[str, str], name: str, file: Path | None) -> bytes | None:
    if file is not None:
        try:
            token, source = file.read_text(encoding="utf-8", errors="replace").strip(), str(file)
        except OSError as error:
            raise ConfigError(f"cannot read the token in {file}: {error.strerror}") from None
    elif name in environment:
        token, source = environment[name], name
    else:
        return None
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{source} must hold at least {SHORTEST} printable ASCII characters without spaces")
    return _digest(token)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
