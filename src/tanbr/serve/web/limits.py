"""How often one client may ask, how much of what was asked may lie in memory, and who a client is."""

import ipaddress
from collections import OrderedDict

REMEMBERED = 10_000  # clients; the one not heard of for longest is forgotten first


class RateLimit:
    """A bucket of tokens for every client: `burst` at once, refilled by `rate` a second; rate 0 sets no limit."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client → tokens, when counted

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, client: str, now: float) -> float:
        """Take a token of the client's, or say for how many seconds there is none."""
        if self._rate == 0:
            return 0.0
        tokens, counted = self._buckets.pop(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted) * self._rate)
        short = max(0.0, 1.0 - tokens)
        self._buckets[client] = (tokens if short else tokens - 1.0, now)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return short / self._rate


class BodyMemory:
    """Bytes of bodies that are in memory, over all clients."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.bytes = 0

    def take(self, size: int) -> bool:
        """Count `size` bytes in, if there is room."""
        if self.bytes + size > self._most:
            return False
        self.bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Count them out again."""
        self.bytes -= size


def client_of(address: str) -> str:
    """Name the client at an address: for IPv6 its /64, since a client has as many addresses in it as it likes.

    A socket for both families sees IPv4 clients at ::ffff:a.b.c.d, all in one /64: they are told apart by a.b.c.d.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
