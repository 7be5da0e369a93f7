"""What a client may ask of the server, and how long it may take."""

from typing import Annotated

from pydantic import Field

from tanbr.config import Section

MOST_FEEDBACK = 1000  # pieces in a request: about as long on its way to the disk as one


class HttpConfig(Section):
    """What a client may ask of the server, and how long it may take."""

    host: str = "127.0.0.1"
    """Address to listen on; this machine only unless told otherwise."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    hosts: tuple[Annotated[str, Field(pattern=r"^(\*|(\*\.)?[^*]+)$")], ...] = ()
    """Names by which clients may call a server that listens on loopback, beside localhost and its addresses;
    *.example.com stands for all names of a domain."""
    proxies: tuple[Annotated[str, Field(pattern=r"^[0-9a-fA-F:.]+(/[0-9]+)?$")], ...] = ()
    """Addresses or networks of reverse proxies whose X-Forwarded-For is believed: of it, the last that is no proxy."""
    inputs: int = Field(default=256, ge=1)
    """Most texts or prompts in a request."""
    text_chars: int | None = Field(default=None, ge=1)
    """Most characters in a text; if not given, what fits into a body, and the model's own limit on tokens."""
    body_bytes: int = Field(default=1 << 20, ge=1024)
    """Largest body of a request."""

    @property
    def longest(self) -> int:
        """Most characters in a text."""
        return self.text_chars or self.body_bytes

    connections: int = Field(default=512, ge=1)
    """Most connections open at once; where there are more, one without a whole request is closed for a new one."""
    client_connections: int = Field(default=128, ge=1)
    """Most connections of one client, or of all clients behind one address; `proxies` may have more."""
    idle_seconds: int = Field(default=30, ge=1)
    """A connection over which nothing is asked for this time is closed."""
    rate: float = Field(default=0.0, ge=0)
    """Most requests a second from one client; 0 sets no limit."""
    burst: int = Field(default=100, ge=1)
    """Requests that one client may make at once before `rate` holds it back."""
    read_seconds: float = Field(default=15.0, gt=0)
    """A request must have arrived whole within this time."""
    answer_seconds: float = Field(default=30.0, gt=0)
    """A request that is not answered within this time is given up."""
    stop_seconds: int = Field(default=30, ge=1)
    """Time to finish what was accepted and to save when the server is told to stop."""
