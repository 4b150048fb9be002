"""An image from an address that a client sent, fetched without reaching what only we can reach.

Enters: a URL from anybody, and a `FetchPolicy` of the operator. Leaves: the bytes of an image, or a
`FetchRefused` whose message is fixed, so that it tells nothing of the network behind the server.

A server that fetches what it is told to can be made to ask its own machine, its neighbours or the
metadata service of its cloud. So every hop, the first and each redirect, goes the same way: the URL
is parsed strictly, its host resolved once, every address found must be permitted, and the
connection goes to one of exactly these addresses. A name that resolves to something else a moment
later changes nothing. Knows no proxies, no cookies, no credentials, no compression and nothing of
how an image is decoded; how many fetches run at a time is the caller's to limit.
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote, urljoin

import h11

from skipqa.errors import UserError

Address = IPv4Address | IPv6Address

MAX_URL = 2_048  # characters
MAX_NAME = 253  # characters of a host, as DNS has it
MAX_ATTEMPTS = 4  # addresses of one host that a connection is tried to
CONNECT_S = 3.0  # for one of them, so that a dead one leaves time for the next
# Read at a time. A body in chunks of one byte takes 5 ms to parse per 4 KiB, and as long nobody
# else on this event loop is served.
READ_BYTES = 4_096
PORTS = {"http": 80, "https": 443}
REDIRECTS = frozenset({301, 302, 303, 307, 308})

# One message for a host that is not allowed and one that does not exist: the difference would tell
# anybody which names the network behind the server knows.
MESSAGES = {
    "image_url_not_allowed": "the address of the image is not allowed or does not exist",
    "image_url_failed": "the image could not be fetched",
    "image_url_not_an_image": "the address does not lead to an image",
    "image_too_large": "the image is larger than {:g} MiB",
    "image_url_timeout": "the image took longer than {:g} s to fetch",
}


class FetchRefused(UserError):
    """Not fetched. `code` says why, and the message never says from where."""

    def __init__(self, code: str, limit: float = 0.0) -> None:
        super().__init__(MESSAGES[code].format(limit))
        self.code = code


# What the registries of special addresses list as not global, or as a way to wrap another address.
# Our own list, as `is_global` knows more or less of it from one version of Python to the next.
_SPECIAL = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # behind a carrier's NAT; the metadata service of one cloud
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a public number that means the host inside the machines of one cloud
        "169.254.0.0/16",  # link-local; the metadata service of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, around any IPv4 address
        "3fff::/20",  # documentation
    )
)
# Everything else of IPv6 is loopback, link-local, site-local, unique local, multicast, IPv4-mapped,
# local NAT64 or not assigned.
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


def is_public(address: Address) -> bool:
    """An address of the open internet, that of one host there, and not another one in disguise.

    An IPv6-only network reaches the IPv4 internet by 64:ff9b::/96: there the inner one counts.
    """
    if address in _NAT64:
        address = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address.version == 6 and address not in _GLOBAL_UNICAST:
        return False
    if any(address in network for network in _SPECIAL):
        return False
    return address.is_global and not address.is_multicast


async def _lookup(host: str, port: int) -> list[str]:
    """The addresses of a name, by the resolver of the system."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(address[0]) for *_, address in found]


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """What may be fetched, and how much and how long.

    `allowed_hosts` are exact names, or `.example.org` for every name below that one; None allows
    any. They come on top of `permit`, which every address of a host has to pass. `tls` is for a
    certificate authority of one's own.
    """

    max_bytes: int = 32 * 2**20
    timeout_s: float = 10.0  # of the whole, redirects included
    max_redirects: int = 3
    ports: frozenset[int] = frozenset(PORTS.values())
    allowed_hosts: tuple[str, ...] | None = None
    permit: Callable[[Address], bool] = is_public
    resolve: Callable[[str, int], Awaitable[list[str]]] = _lookup
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if self.allowed_hosts is not None:
            # Written as hosts are written when they are compared; an entry that can never match is
            # reported at the start.
            hosts = tuple(_allowed_host(entry) for entry in self.allowed_hosts)
            object.__setattr__(self, "allowed_hosts", hosts)

    def allows(self, host: str) -> bool:
        return self.allowed_hosts is None or any(
            host.endswith(entry) if entry.startswith(".") else host == entry
            for entry in self.allowed_hosts
        )


def _allowed_host(entry: str) -> str:
    below = entry.startswith(".")
    try:
        host = _canonical(entry.removeprefix("."))
        if below and not isinstance(host, str):
            raise ValueError  # nothing is below a number
        return f".{host}" if below else _written(host)
    except ValueError:
        message = f"{entry!r} is not a host: write example.org, or .example.org for all below it"
        raise UserError(message) from None


# Scheme, host, port, path with query; a fragment stays here. No userinfo, no zone of an IPv6
# address, no escapes in a host, no port without digits or with leading zeros.
_URL = re.compile(
    r"([A-Za-z]+)://"
    r"(\[[0-9A-Fa-f:.]+\]|[^\[\]/?#:@%]+)"
    r"(?::([1-9][0-9]{0,4}))?"
    r"((?:/[^?#]*)?(?:\?[^#]*)?)"
    r"(?:#.*)?"
)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
# A last label like this makes resolvers read the whole as an IPv4 address in some old spelling.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


def _canonical(host: str) -> str | Address:
    """The name in lower case and ASCII, or the address it spells; a ValueError for all others."""
    if len(host) > MAX_NAME or "%" in host:
        raise ValueError
    if host.startswith("["):
        return IPv6Address(host.removeprefix("[").removesuffix("]"))
    host = host.lower()
    if not host.isascii():
        # Only what comes back the same: no full-width digits, no dots or slashes in disguise, no
        # letters that the two versions of IDNA read as different names.
        encoded = host.encode("idna")
        if encoded.decode("idna") != host:
            raise ValueError
        host = encoded.decode("ascii")
    if len(host) > MAX_NAME or not _NAME.fullmatch(host):
        raise ValueError
    return IPv4Address(host) if _NUMBER.fullmatch(host.rpartition(".")[2]) else host


def _written(host: str | Address) -> str:
    """As it stands in a URL."""
    return f"[{host}]" if isinstance(host, IPv6Address) else str(host)


@dataclass(frozen=True, slots=True)
class Target:
    """One hop: whom to connect to, and what to ask for there."""

    scheme: str
    host: str | Address
    port: int
    path: str  # with the query

    @property
    def authority(self) -> str:
        host = _written(self.host)
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse(url: str, policy: FetchPolicy) -> Target:
    """A URL that every program reads alike, and that the policy allows, before DNS is asked."""
    match = _URL.fullmatch(url) if len(url) <= MAX_URL and _is_plain(url) else None
    if match is None:
        raise FetchRefused("image_url_not_allowed")
    scheme = match[1].lower()
    try:
        host = _canonical(match[2])
    except ValueError:
        raise FetchRefused("image_url_not_allowed") from None
    port = int(match[3] or PORTS.get(scheme, 0))
    if scheme not in PORTS or port not in policy.ports or not policy.allows(_written(host)):
        raise FetchRefused("image_url_not_allowed")
    path = match[4] if match[4].startswith("/") else f"/{match[4]}"
    return Target(scheme, host, port, quote(path, safe="/?%:@!$&'()*+,;=[]~"))


def _is_plain(text: str) -> bool:
    """No spaces, control or invisible characters or halves of surrogates, and no backslash, which
    browsers take for a slash."""
    return text.isprintable() and not any(character in text for character in " \\")


async def fetch_image(url: str, policy: FetchPolicy) -> bytes:
    """The body of the answer, which claims to be an image; whether it is one shows in decoding."""
    try:
        async with asyncio.timeout(policy.timeout_s):
            return await _follow(url, policy)
    except TimeoutError:
        raise FetchRefused("image_url_timeout", policy.timeout_s) from None


async def _follow(url: str, policy: FetchPolicy) -> bytes:
    target = parse(url, policy)
    for _ in range(policy.max_redirects + 1):
        addresses = await _permitted(target, policy)
        try:
            async with _connected(target, addresses, policy) as streams:
                found = await _exchange(target, policy, *streams)
        except (OSError, h11.ProtocolError):
            raise FetchRefused("image_url_failed") from None
        if isinstance(found, bytes):
            return found
        target = _redirected(target, found.location, policy)
    raise FetchRefused("image_url_failed")


async def _permitted(target: Target, policy: FetchPolicy) -> list[Address]:
    """All addresses of the host, if every one is permitted: one that is not may be a bait's."""
    found = [str(target.host)]
    try:
        if isinstance(target.host, str):
            found = await policy.resolve(target.host, target.port)
        addresses = [_numeric(text) for text in found]
    except (OSError, ValueError):  # no such name, or not an address
        raise FetchRefused("image_url_not_allowed") from None
    if not addresses or not all(map(policy.permit, addresses)):
        raise FetchRefused("image_url_not_allowed")
    return list(dict.fromkeys(addresses))


def _numeric(text: str) -> Address:
    if "%" in text:  # a zone, which names an interface of this machine
        raise ValueError
    return ipaddress.ip_address(text)


@functools.cache
def _tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def _connected(
    target: Target, addresses: Iterable[Address], policy: FetchPolicy
) -> AsyncIterator[Streams]:
    """A connection to one of these addresses; over TLS the certificate has to be the host's."""
    secure = target.scheme == "https"
    for address in list(addresses)[:MAX_ATTEMPTS]:
        with suppress(OSError):  # refused, unreachable, a wrong certificate, too slow: the next one
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    str(address),  # a number, so nothing is resolved again
                    target.port,
                    ssl=(policy.tls or _tls()) if secure else None,
                    server_hostname=str(target.host) if secure else None,
                )
            break
    else:
        raise FetchRefused("image_url_failed")
    try:
        yield reader, writer
    finally:
        # Nothing more is to be said, and a polite end of TLS could be kept waiting
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


@dataclass(frozen=True, slots=True)
class _Redirect:
    location: bytes


async def _exchange(
    target: Target,
    policy: FetchPolicy,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> bytes | _Redirect:
    """Ask for the target, and read what comes until it is whole or over the limit."""
    http = h11.Connection(h11.CLIENT)
    headers = [
        ("Host", target.authority),
        ("User-Agent", "skipqa"),
        ("Accept", "image/*"),
        ("Accept-Encoding", "identity"),
        ("Connection", "close"),
    ]
    request = http.send(h11.Request(method="GET", target=target.path, headers=headers)) or b""
    request += http.send(h11.EndOfMessage()) or b""
    if writer.transport.is_closing():  # lost already; uvloop has a RuntimeError for writing to it
        raise ConnectionResetError
    writer.write(request)
    await writer.drain()
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(READ_BYTES))
            await asyncio.sleep(0)  # a read of what is there does not let others run
        elif isinstance(event, h11.Response):
            if event.status_code in REDIRECTS:
                return _Redirect(_only(event, b"location"))
            _check_response(event, policy)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > policy.max_bytes:  # whatever length was announced
                raise _too_large(policy)
        elif isinstance(event, h11.EndOfMessage):
            return bytes(body)


def _check_response(response: h11.Response, policy: FetchPolicy) -> None:
    """An image, as it is and not too long, before its first byte is read."""
    if response.status_code != 200:
        raise FetchRefused("image_url_failed")
    headers = response.headers
    # Unpacked, a small body could become any size
    if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in headers):
        raise FetchRefused("image_url_failed")
    if not _only(response, b"content-type").lower().startswith(b"image/"):
        raise FetchRefused("image_url_not_an_image")
    if any(name == b"content-length" and int(value) > policy.max_bytes for name, value in headers):
        raise _too_large(policy)


def _only(response: h11.Response, name: bytes) -> bytes:
    """The value of a header; empty if it is missing, or there twice for two readings."""
    values = [value for key, value in response.headers if key == name]
    return values[0] if len(values) == 1 else b""


def _too_large(policy: FetchPolicy) -> FetchRefused:
    return FetchRefused("image_too_large", policy.max_bytes / 2**20)


def _redirected(target: Target, location: bytes, policy: FetchPolicy) -> Target:
    """The next hop, parsed as strictly as the first."""
    try:
        text = location.decode()
        if not text or not _is_plain(text):  # joining would drop tabs and line breaks
            raise ValueError
        url = urljoin(target.url, text)
    except ValueError:  # also for brackets without an address
        raise FetchRefused("image_url_not_allowed") from None
    following = parse(url, policy)
    if target.scheme == "https" and following.scheme != "https":
        raise FetchRefused("image_url_not_allowed")
    return following
