"""Bearer tokens: where they come from, whose they are, and what each opens."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from tanbr.config import Section, read_toml
from tanbr.errors import ConfigError
from tanbr.serve.web.refusals import Refusal

TOKEN, ADMIN_TOKEN = "TANBR_TOKEN", "TANBR_ADMIN_TOKEN"
SHORTEST = 16

HEALTH = ("/healthz", "/readyz")  # need no token and count for no rate
OPEN = (*HEALTH, "/dashboard")  # and "/", the page itself, which holds no figures
ADMIN = "/v1/admin/"


class Token(Section):
    """What is known of a token that a client may show."""

    name: Annotated[str, Field(pattern=r"^[\w.@-]{1,64}$")] = ""
    """Of its client; empty if there is no list."""
    admin: bool = False
    """Whether it opens ADMIN, too."""


class Listed(Token):
    """A `[[client]]` of a list of tokens."""

    name: Annotated[str, Field(pattern=r"^[\w.@-]{1,64}$")]
    token: str


class TokenList(Section):
    """A file of tokens."""

    client: Annotated[tuple[Listed, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Tokens:
    """All tokens that open something, by their digests: the words themselves are in no traceback and no log."""

    known: Mapping[bytes, Token] = field(default_factory=dict, repr=False)

    @classmethod
    def read(
        cls, environment: Mapping[str, str], *, token_file: Path | None = None, admin_token_file: Path | None = None
    ) -> "Tokens":
        """Take tokens from files or variables: never from the command line, which every user can list."""
        if admin_token_file is not None and admin_token_file.suffix == ".toml":
            raise ConfigError(f"give {admin_token_file} as --token-file; admin = true there lets a client administer")
        if token_file is not None and token_file.suffix == ".toml":
            known = _listed(token_file)
        else:
            known = _token(environment, TOKEN, token_file)
        return cls(known | _token(environment, ADMIN_TOKEN, admin_token_file, admin=True))

    @property
    def closed(self) -> bool:
        """Whether all must show a token; otherwise only those who administer."""
        return any(token.name or not token.admin for token in self.known.values())

    @property
    def administered(self) -> bool:
        """Whether there is a token that opens ADMIN."""
        return any(token.admin for token in self.known.values())

    def shown(self, authorization: str | None) -> Token | None:
        """Say which token an Authorization header shows; nothing else in the header makes a difference."""
        scheme, _, word = (authorization or "").partition(" ")
        return self.known.get(_digest(word.strip())) if scheme.lower() == "bearer" else None

    def check(self, route: str, authorization: str | None) -> Token | None:
        """Give the token that a request for a route, by its declared path ("" for none), shows; refuse if it must."""
        admin, token = route.startswith(ADMIN), self.shown(authorization)
        if route == "/" or route.startswith(OPEN) or not (self.closed or admin):
            return token
        if admin and not self.administered:
            says = f"administration is off: start the server with {ADMIN_TOKEN} set, or with a client that may"
            raise Refusal(403, says)
        if token is None or (admin and not token.admin):
            which = "the administration token" if admin else "a token"
            raise Refusal(
                401, f"send {which} as `Authorization: Bearer …`", headers={"www-authenticate": 'Bearer realm="tanbr"'}
            )
        return token


def _listed(file: Path) -> dict[bytes, Token]:
    """Read a list of clients; nothing of a list that is wrong is repeated, because it holds secrets."""
    try:
        rows = TokenList.model_validate(read_toml(file, what="the tokens in")).client
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        says = "write [[client]] for each, with a name, a token and, to let it administer, admin = true"
        raise ConfigError(f"{file}: {where}: {problem['msg']}; {says}") from None
    for what in ("name", "token"):
        if len({getattr(row, what) for row in rows}) < len(rows):
            raise ConfigError(f"{file}: two clients have the same {what}; give each its own")
    return {_checked(row.token, f"{file}, {row.name}"): Token(name=row.name, admin=row.admin) for row in rows}


def _token(environment: Mapping[str, str], name: str, file: Path | None, *, admin: bool = False) -> dict[bytes, Token]:
    try:
        word = environment.get(name) if file is None else file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise ConfigError(f"cannot read the token in {file}: {error.strerror}") from None
    return {} if word is None else {_checked(word, str(file or name)): Token(admin=admin)}


def _checked(token: str, source: str) -> bytes:
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{source} must hold at least {SHORTEST} printable ASCII characters without spaces")
    return _digest(token)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
