"""Hostile requests, drawn from the server's own OpenAPI document: bodies of its schemas, bytes and sizes, mutated."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MEGABYTE = 1 << 20  # what a body may have at the default limits
LEAVES: tuple[Any, ...] = (
    None, True, 0, -1, 1e308, 2**63, 10**400, 0.5, "", "a", "\x00", "\ud800", "\u202e", "x" * 20_001, [], {}, [[]],
    ["a"] * 3, {"a": {"b": 1}}, [None], "NaN", "../../etc/passwd", "'; --", "{{7*7}}", "%s%n",
)  # fmt: skip

HEADERS = (
    "accept: application/xml", "expect: 100-continue", "content-encoding: gzip", "range: bytes=0-0", "te: trailers",
    "authorization: Bearer wrong-token-of-an-attacker", "x-forwarded-for: 10.0.0.1", "cookie: " + "a" * 4000,
    "connection: upgrade, keep-alive", "host: evil.example", "content-type: text/plain",
)  # fmt: skip


@dataclass(frozen=True)
class Attack:
    """Bytes to send, and whether the client stays to hear the answer."""

    family: str
    data: bytes
    stays: bool = True


def request(path: str, body: bytes = b"", *, method: str = "POST", headers: tuple[str, ...] = ()) -> bytes:
    """Frame a request rightly, whatever else is wrong with it."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", *headers]
    lines += [f"content-length: {len(body)}", "content-type: application/json"] if body or method == "POST" else []
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


class Attacker:
    """Draws attacks of every family, from a document and a seed."""

    def __init__(self, document: dict[str, Any], *, seed: int) -> None:
        self._rng, self._schemas = random.Random(seed), document["components"]["schemas"]
        self._operations = [
            (path, method.upper(), operation)
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
        ]
        self._large = [make() for make in SIZES]

    def draw(self) -> Attack:
        """Make the next one."""
        makers = (self.documented, self.mutated_value, self.mutated_bytes, self.spliced, self.leaving, self.large)
        return self._rng.choices(makers, weights=(20, 35, 25, 8, 10, 2))[0]()

    def documented(self) -> Attack:
        """A request as the document describes it, with a path, a method, a query or headers that it does not."""
        rng = self._rng
        path, method, operation = rng.choice(self._operations)
        path = path.replace("{name}", rng.choice(["x", "%2e%2e", "a" * 500, "%00", "é"]))
        for parameter in operation.get("parameters", ()):
            if parameter["in"] == "query":
                value = rng.choice(["0", "-1", "1e9", "9" * 30, "", "null", "%00", "5", "%ff"])
                path += f"{'&' if '?' in path else '?'}{parameter['name']}={value}"
        method = rng.choice([method] * 4 + ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
        headers = tuple(rng.sample(HEADERS, rng.choice([0, 1, 1, 2])))
        body = self._body(operation) if method in ("POST", "PUT", "PATCH") else b""
        return Attack("documented", request(path, body, method=method, headers=headers))

    def mutated_value(self) -> Attack:
        """A body of the right schema with one to three of its values changed for others, or written twice."""
        path, _, operation = self._rng.choice([one for one in self._operations if "requestBody" in one[2]])
        value = self._instance(operation["requestBody"]["content"]["application/json"]["schema"])
        for _ in range(self._rng.randint(1, 3)):
            value = self._mutate(value)
        body = json.dumps(value, ensure_ascii=self._rng.random() < 0.5).encode("utf-8", "surrogatepass")
        if self._rng.random() < 0.1:
            body = body[:-1] + b"," + body[1:]
        return Attack("mutated_value", request(path, body))

    def mutated_bytes(self) -> Attack:
        """A whole request in which bytes are flipped, put in, left out or repeated: head and body alike."""
        rng, data = self._rng, bytearray(self._request())
        for _ in range(rng.choice([1, 1, 2, 4, 16])):
            at = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0:
                    data[at : at + 1] = rng.randbytes(1)
                case 1:
                    data[at:at] = rng.choice([b"\x00", b"\r\n", b"\n", b"\xff", b",", b'"', b"[", b"\r\n\r\n"])
                case 2:
                    del data[at : at + rng.randint(1, 8)]
                case 3:
                    data[at:at] = data[at : at + rng.randint(1, 64)] * rng.randint(1, 4)
        return Attack("mutated_bytes", bytes(data) or b"\x00")

    def spliced(self) -> Attack:
        """Two requests as one: behind each other, or the end of one behind the beginning of another."""
        one, other = self._request(), self._request()
        if self._rng.random() < 0.3:
            return Attack("spliced", one + other)
        return Attack("spliced", one[: self._rng.randrange(1, len(one))] + other[self._rng.randrange(len(other)) :])

    def leaving(self) -> Attack:
        """A client that hangs up in the middle of its request, or before the answer."""
        data = self._request()
        return Attack("leaving", data[: self._rng.choice([self._rng.randrange(1, len(data)), len(data)])], stays=False)

    def large(self) -> Attack:
        """As much as the default limits allow, of what is dearest to read."""
        path = self._rng.choice([path for path, _, operation in self._operations if "requestBody" in operation])
        return Attack("large", request(path, self._rng.choice(self._large)))

    def _request(self) -> bytes:
        path, method, operation = self._rng.choice(self._operations)
        return request(path, self._body(operation), method=method)

    def _body(self, operation: dict[str, Any]) -> bytes:
        if "requestBody" not in operation:
            return b""
        return json.dumps(self._instance(operation["requestBody"]["content"]["application/json"]["schema"])).encode()

    def _instance(self, schema: dict[str, Any]) -> Any:
        rng = self._rng
        if "$ref" in schema:
            return self._instance(self._schemas[schema["$ref"].rpartition("/")[2]])
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return self._instance(rng.choice(schema[several]))
        if "enum" in schema or "const" in schema:
            return rng.choice(schema.get("enum", [schema.get("const")]))
        match schema.get("type"):
            case "object":
                needed = set(schema.get("required", ()))
                return {
                    name: self._instance(inner)
                    for name, inner in schema.get("properties", {}).items()
                    if name in needed or rng.random() < 0.4
                }
            case "array":
                least = schema.get("minItems", 0)
                return [self._instance(schema["items"]) for _ in range(max(least, rng.choice([1, 1, 2, 5])))]
            case "string":
                return " ".join(rng.choices(["a", "fine", "film", "ψ", "\n", "😀"], k=rng.randint(1, 6)))
            case "integer":
                return rng.randint(0, 9)
            case "number":
                return rng.random()
            case "boolean":
                return rng.random() < 0.5
        return None

    def _mutate(self, value: Any) -> Any:
        rng = self._rng
        if isinstance(value, dict) and value and rng.random() < 0.8:
            name = rng.choice(list(value))
            match rng.randrange(4):
                case 0:
                    return {key: inner for key, inner in value.items() if key != name}
                case 1:
                    return value | {rng.choice(["x", "", "__class__", name + " "]): rng.choice(LEAVES)}
            return value | {name: self._mutate(value[name])}
        if isinstance(value, list) and value and rng.random() < 0.7:
            at = rng.randrange(len(value))
            if rng.random() < 0.2:
                return value * rng.choice([0, 2, 300])
            return [*value[:at], self._mutate(value[at]), *value[at + 1 :]]
        return rng.choice(LEAVES)


def _filled(before: bytes, piece: bytes, after: bytes) -> Callable[[], bytes]:
    return lambda: before + piece * ((MEGABYTE - len(before) - len(after)) // len(piece)) + after


SIZES: tuple[Callable[[], bytes], ...] = (
    _filled(b'{"inputs": [', b"1,", b"1]}"),
    _filled(b'{"feedback": [', b'{"request_id":"r","reward":2},', b"{}]}"),
    _filled(b'{"inputs": ["', b"\\u0041", b'"]}'),
    _filled(b'{"inputs": ["a"],', b'"k":1,', b'"z":1}'),
    _filled(b"", b'{"a":', b""),
    lambda: b"{" + b",".join(b'"%d":1' % n for n in range(100_000))[: MEGABYTE - 10] + b"}",
    lambda: json.dumps({"inputs": ["wort " * 790] * 256}).encode(),  # all that is allowed, and right
    lambda: b"x" * (MEGABYTE + 1),
)
