"""How often one client may ask, how much of what was asked may lie in memory, and who a client is."""

import ipaddress
from collections import OrderedDict

REMEMBERED = 10_000  # clients; the one not heard of for longest is forgotten first
# Bytes of bodies that may be refused to one client, at once and a second. To parse and refuse a megabyte takes 5 ms or
# more of the one thread that reads for all; at this rate one address takes a few thousandths of its time.
REFUSED_BURST, REFUSED_RATE = 8 << 20, 256 << 10


class RateLimit:
    """A bucket of tokens for every client: `burst` at once, refilled by `rate` a second; rate 0 sets no limit."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client → tokens, when counted

    def __len__(self) -> int:
        return len(self._buckets)

    def wait(self, client: str, now: float, *, cost: float = 1.0) -> float:
        """Take tokens of the client's, or say for how many seconds there are too few."""
        if self._rate == 0:
            return 0.0
        short = max(0.0, cost - self._left(client, now))
        if cost and not short:
            self.take(client, cost, now)
        return short / self._rate

    def take(self, client: str, cost: float, now: float) -> None:
        """Take tokens, even those that are not there: they are owed."""
        self._buckets[client] = self._left(client, now) - cost, now
        self._buckets.move_to_end(client)
        if len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)

    def _left(self, client: str, now: float) -> float:
        tokens, counted = self._buckets.get(client, (self._burst, now))
        return min(self._burst, tokens + (now - counted) * self._rate)


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
