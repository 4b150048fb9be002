"""Fetching an image by URL: what is refused, and where connections really go.

Servers are real ones on loopback, and `permit` allows just that address where one is to be reached.
All other tests have the default rule, which has to refuse every way to spell or hide an address.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import gzip
import ipaddress
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

pytest.importorskip("h11")

from skipqa.errors import UserError
from skipqa.serve.fetch import (
    MESSAGES,
    Address,
    FetchPolicy,
    FetchRefused,
    fetch_image,
    is_public,
    parse,
)

pytestmark = pytest.mark.filterwarnings("error::ResourceWarning")

NOT_ALLOWED, FAILED, NOT_AN_IMAGE, TOO_LARGE, TIMEOUT = MESSAGES
IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
HEADERS = {"host", "user-agent", "accept", "accept-encoding", "connection"}


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    """A transport or socket that was not closed warns when it is collected."""
    gc.freeze()  # only what the test itself makes is looked through
    yield
    gc.collect()
    gc.unfreeze()


def live(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that runs on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 15))

    return run


def reply(body: bytes = IMAGE, status: str = "200 OK", **headers: str | None) -> bytes:
    """A response; a header that is None is left out."""
    given = {"content-type": "image/png", "content-length": str(len(body))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{name}: {value}\r\n" for name, value in given.items() if value is not None]
    return f"HTTP/1.1 {status}\r\n{''.join(lines)}\r\n".encode() + body


def redirect(location: str, status: str = "302 Found") -> bytes:
    return reply(b"", status, location=location)


def chunked(body: bytes) -> bytes:
    return reply(body, content_length=None, transfer_encoding="chunked")


@dataclass
class Visit:
    """One request to a site."""

    head: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def path(self) -> str:
        return self.head.split(" ")[1]

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.strip().split("\r\n")[1:]
        return {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until_closed(self) -> None:
        with suppress(ConnectionError):
            await self.reader.read()


Script = Callable[[Visit], Awaitable[None]]


@dataclass
class Site:
    """A server on loopback and what it has been asked."""

    port: int
    connections: int = 0
    visits: list[Visit] = field(default_factory=list)

    def url(self, path: str = "/cat.png", host: str = HERE, scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def policy(self, **settings: Any) -> FetchPolicy:
        """Lets this site be reached, and nothing else."""
        base = {"ports": frozenset({self.port}), "permit": lambda a: str(a) == HERE}
        return FetchPolicy(**{**base, **settings})


@asynccontextmanager
async def serving(
    script: Script | bytes, address: str = HERE, **options: Any
) -> AsyncIterator[Site]:
    tasks: list[asyncio.Task[Any] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        site.connections += 1
        with suppress(OSError, asyncio.IncompleteReadError):  # the client may go at any time
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            site.visits.append(visit := Visit(head, reader, writer))
            await (visit.say(script) if isinstance(script, bytes) else script(visit))
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, address, **{"port": 0, **options})
    site = Site(server.sockets[0].getsockname()[1])
    try:
        yield site
    finally:
        server.close()
        await asyncio.gather(*filter(None, tasks))
        await server.wait_closed()


async def fetch_from(script: Script | bytes, **settings: Any) -> bytes:
    async with serving(script) as site:
        return await fetch_image(site.url(), site.policy(**settings))


async def refusal(fetching: Awaitable[bytes]) -> str:
    """Its code; the message is the one that belongs to it."""
    with pytest.raises(FetchRefused) as caught:
        await fetching
    assert isinstance(caught.value, UserError)
    assert str(caught.value).startswith(MESSAGES[caught.value.code].partition("{")[0])
    return caught.value.code


def answering(*answers: list[str]) -> Callable[[str, int], Awaitable[list[str]]]:
    """A resolver whose answer changes; the last one stays."""
    left = list(answers)

    async def resolve(host: str, port: int) -> list[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolve


async def no_lookup(*_: Any, **__: Any) -> list[str]:
    raise AssertionError("nothing was to be resolved")


# What is fetched


@live
async def test_the_request_carries_nothing_but_what_it_needs() -> None:
    async with serving(reply()) as site:
        url = site.url("/a%20b/ü.png?size=1&x=%7E#part", host="Pictures.Example")
        assert await fetch_image(url, site.policy(resolve=answering([HERE]))) == IMAGE
    assert site.visits[0].path == "/a%20b/%C3%BC.png?size=1&x=%7E"
    assert set(site.visits[0].headers) == HEADERS
    assert site.visits[0].headers["host"] == f"pictures.example:{site.port}"
    assert site.visits[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    "response",
    [
        reply(content_length=None),  # until the connection ends
        chunked(b"a6\r\n" + IMAGE[:166] + b"\r\n62;x=y\r\n" + IMAGE[166:] + b"\r\n0\r\n\r\n"),
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + reply(),
        reply(content_encoding="identity", content_type="IMAGE/JPEG; q=1"),
        reply().replace(b"HTTP/1.1", b"HTTP/1.0"),
        reply() + b"HTTP/1.1 200 OK\r\n\r\n",  # what follows the image is not read
    ],
)
@live
async def test_framings_of_real_servers_are_read(response: bytes) -> None:
    assert await fetch_from(response) == IMAGE


@live
async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with serving(reply()) as site:
        resolve = answering([ELSEWHERE, HERE, HERE])
        policy = site.policy(resolve=resolve, permit=lambda a: a.is_loopback)
        assert await fetch_image(site.url(host="pictures.example"), policy) == IMAGE


# Addresses

DENIED = """
127.0.0.1 127.255.255.254 0.0.0.0 0.1.2.3 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1
169.254.169.254 100.64.0.1 100.127.255.254 100.100.100.200 192.0.0.8 192.0.0.192 192.0.2.1
198.51.100.1 203.0.113.1 198.18.0.1 198.19.255.255 192.88.99.1 168.63.129.16 224.0.0.1
239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1
2002:7f00:1:: 2002:a00:1::1 2002:c0a8:101:: 2001::1 2001:0:7f00:1:: 2001:2::1 2001:10::1 2001:20::1
2001:db8::1 3fff::1 64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::169.254.169.254
64:ff9b::100.64.0.1 64:ff9b:1::1 64:ff9b:1::8.8.8.8 fe80::1 febf::1 fec0::1 fc00::1
fd00:ec2::254 ff02::1 ff0e::1 100::1 100:0:0:1::1 5f00::1 4000::1 1::1
""".split()
PUBLIC = "8.8.8.8 100.63.255.255 172.32.0.1 2606:4700::1111 2a00::1 64:ff9b::8.8.8.8".split()


@pytest.mark.parametrize("address", DENIED)
@live
async def test_special_addresses_are_refused_however_they_are_reached(address: str) -> None:
    """As the host itself, as what a name resolves to, and among good addresses of a name."""
    literal = f"[{address}]" if ":" in address else address
    policy = FetchPolicy(resolve=no_lookup)
    assert await refusal(fetch_image(f"http://{literal}/", policy)) == NOT_ALLOWED
    for addresses in ([address], ["8.8.8.8", address, "1.1.1.1"]):
        policy = FetchPolicy(resolve=answering(addresses))
        assert await refusal(fetch_image("https://pictures.example/", policy)) == NOT_ALLOWED


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_permitted(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


@given(st.ip_addresses(v=4))
def test_an_address_in_disguise_is_never_permitted_more_than_itself(inner: Address) -> None:
    number = int(inner)
    disguises = [
        number,  # IPv4-compatible
        0xFFFF << 32 | number,  # IPv4-mapped
        0x2002 << 112 | number << 80,  # 6to4
        0x2001_0000 << 96 | number ^ 0xFFFF_FFFF,  # the client of a Teredo address
        0x2001_0000 << 96 | number << 64,  # its server
        0x0064_FF9B << 96 | number,  # NAT64
        0x0064_FF9B_0001 << 80 | number,  # local NAT64
    ]
    for disguise in disguises:
        assert is_public(inner) or not is_public(ipaddress.IPv6Address(disguise))


@given(st.ip_addresses())
def test_what_python_knows_as_special_is_never_public(address: Address) -> None:
    if not address.is_global or address.is_multicast or address.is_link_local:
        assert not is_public(address)


@pytest.mark.parametrize(
    "answer", ["", "fe80::1%lo", "2606:4700::1111%lo", "localhost", "8.8.8.8 x"]
)
@live
async def test_answers_of_a_resolver_that_are_no_plain_addresses_are_refused(answer: str) -> None:
    policy = FetchPolicy(resolve=answering(answer.split()), permit=lambda _: True)
    assert await refusal(fetch_image("http://pictures.example/", policy)) == NOT_ALLOWED


@live
async def test_an_unknown_name_reads_like_a_name_of_the_inner_network() -> None:
    async def unknown(host: str, port: int) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "not known")

    for resolve in (unknown, answering(["10.0.0.7"])):
        fetching = fetch_image("http://db.internal/", FetchPolicy(resolve=resolve))
        assert await refusal(fetching) == NOT_ALLOWED


@live
async def test_the_system_resolver_is_asked_and_its_answer_checked() -> None:
    async with serving(reply()) as site:
        url, policy = site.url(host="localhost"), FetchPolicy(ports=frozenset({site.port}))
        assert await refusal(fetch_image(url, policy)) == NOT_ALLOWED
        assert site.connections == 0
        assert await fetch_image(url, replace(policy, permit=lambda a: a.is_loopback)) == IMAGE


@live
async def test_a_connection_goes_only_to_what_was_checked() -> None:
    """The name resolves to another address each time, and nobody but `resolve` is asked."""
    asyncio.get_running_loop().getaddrinfo = no_lookup
    async with serving(reply()) as good, serving(reply(), ELSEWHERE, port=good.port) as bad:
        policy = good.policy(resolve=answering([HERE], [ELSEWHERE]))
        url = good.url(host="pictures.example")
        assert await fetch_image(url, policy) == IMAGE
        assert await refusal(fetch_image(url, policy)) == NOT_ALLOWED
        assert (good.connections, bad.connections) == (1, 0)


@live
async def test_a_redirect_to_the_same_name_is_resolved_and_checked_anew() -> None:
    moved = redirect("/secret")
    async with serving(moved) as good, serving(reply(), ELSEWHERE, port=good.port) as bad:
        policy = good.policy(resolve=answering([HERE], [ELSEWHERE]))
        assert await refusal(fetch_image(good.url(host="a.example"), policy)) == NOT_ALLOWED
        assert (good.connections, bad.connections) == (1, 0)


# Spellings

TRICKS = r"""
http://2130706433/ http://0x7f000001/ http://0x7f.1/ http://127.1/ http://127.0.1/ http://0x/
http://017700000001/ http://0177.0.0.1/ http://127.0.0.01/ http://127.0.0.0x1/ http://00/ http://0/
http://256.1.1.1/ http://1.2.3.4.5/ http://8.8.8.8./ http://a.0x7f/ http://a.1/ http://①②⑦.0.0.1/
http://１２７.0.0.1/ http://127。0。0。1/ http://ⓛocalhost/ http://a℀b.example/ http://faß.example/
http://[::ffff:127.0.0.1]/ http://[::ffff:7f00:1]/ http://[0:0:0:0:0:ffff:127.0.0.1]/ http://[::1]/
http://[fe80::1%25eth0]/ http://[fe80::1%eth0]/ http://[::1/ http://::1/ http://[]/ http://[8.8.8.8]/
http://[v1.a]/ http://[2606:4700::1111]x/ http://[2606:4700::1111]:x/ http://2606:4700::1111/
http://8.8.8.8\@127.0.0.1/ http://8.8.8.8\.example/ http:\\8.8.8.8/ http:/\8.8.8.8/ http://8.8.8.8/a\b
http://user@8.8.8.8/ http://user:secret@8.8.8.8/ http://8.8.8.8@127.0.0.1/ http://@8.8.8.8/
http://8.8.8.8:80@127.0.0.1/ http://8.8.8.8:22/ http://8.8.8.8:0/ http://8.8.8.8:８０/
http://8.8.8.8:65536/ http://8.8.8.8:080/ http://8.8.8.8:/ http://8.8.8.8:-80/ http://8.8.8.8:8080/
http://8.8.8.8:99999999999/ http://%31%32%37.0.0.1/ http://a%2eb.example/ http://a%00.example/
http:///etc/passwd http:// http: http https:///8.8.8.8/ //8.8.8.8/ /cat.png cat.png httpſ://8.8.8.8/
file:///etc/passwd file://localhost/etc/passwd gopher://8.8.8.8:80/_GET ftp://8.8.8.8/
data:image/png;base64,aGk= javascript:alert(1) ws://8.8.8.8/ jar:http://8.8.8.8!/ url:http://8.8.8.8/
http+unix://8.8.8.8/ http://.example/ http://a..example/ http://a.example./ http://-a.example/
http://a-.example/ http://a!b.example/ http://*/ http://a,b.example/ http://a;b/ http://$HOME/
""".split()
SPACED = (
    " http://8.8.8.8/|http://8.8.8.8/ |http://8.8.8.8 /|http:// 8.8.8.8/|\thttp://8.8.8.8/||"
    "http://8.8.8.8/\r\nHost: x|http://8.8.8.8/\n|ht\ntp://8.8.8.8/|http://a\t.example/|\n|"
    "http://8.8.8.8/\x00|http://8.8.8.8/\x7f|http://8.8.8.8/\x85|http://8.8.8.8/\u2028|"
    "http://a\u200b.example/|http://a\u00ad.example/|http://8.8.8.8/\ud800|\ufeffhttp://8.8.8.8/"
).split("|")
LONG = [f"http://8.8.8.8/{'a' * 2_048}", f"http://{'a' * 64}.b/", f"http://{'a.' * 127}b/"]


@pytest.mark.parametrize("url", TRICKS + SPACED + LONG)
@live
async def test_a_url_that_programs_read_differently_is_refused(url: str) -> None:
    """Before DNS is asked; all that is read as an address are the inner ones of IPv6."""

    def permit(address: Address) -> bool:
        assert address.version == 6
        assert not is_public(address)
        return False

    policy = FetchPolicy(resolve=no_lookup, permit=permit)
    assert await refusal(fetch_image(url, policy)) == NOT_ALLOWED


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("HTTP://A.Example", "http://a.example/"),
        ("https://a.example:443?x=1#y", "https://a.example/?x=1"),
        ("http://a.example:443/", "http://a.example:443/"),
        ("http://bücher.example/ä", "http://xn--bcher-kva.example/%C3%A4"),
        ("http://a_b.1.example/@:8/?u=http://b/", "http://a_b.1.example/@:8/?u=http://b/"),
        ("http://8.8.8.8#@127.0.0.1:22/", "http://8.8.8.8/"),
        ("https://[2606:4700:0::1111]/", "https://[2606:4700::1111]/"),
    ],
)
def test_ordinary_urls_are_read(url: str, canonical: str) -> None:
    assert parse(url, FetchPolicy()).url == canonical


@live
async def test_hosts_can_be_limited_to_a_list() -> None:
    policy = FetchPolicy(allowed_hosts=("A.example", ".bücher.example", "[2606:4700::1111]"))
    for host in "a.example x.y.bücher.example x.xn--bcher-kva.example [2606:4700::1111]".split():
        parse(f"http://{host}/", policy)
    for host in "b.example x.a.example a.example.org bücher.example xbücher.example".split():
        assert await refusal(fetch_image(f"http://{host}/", policy)) == NOT_ALLOWED
    inside = replace(policy, resolve=answering([HERE]))  # allowed, and not permitted
    assert await refusal(fetch_image("http://a.example/", inside)) == NOT_ALLOWED
    nobody = FetchPolicy(allowed_hosts=())
    assert await refusal(fetch_image("http://a.example/", nobody)) == NOT_ALLOWED


@pytest.mark.parametrize(
    "entry", ["*.example", "http://a.example", "a.example:80", "", ".8.8.8.8", "0.1"]
)
def test_an_entry_that_can_never_match_is_reported(entry: str) -> None:
    with pytest.raises(UserError, match="is not a host"):
        FetchPolicy(allowed_hosts=(entry,))


# Redirects


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 Same", "308 Same"])
@live
async def test_redirects_are_followed(status: str) -> None:
    async def script(visit: Visit) -> None:
        following = {
            "/cat.png": "b/dog.png?x",
            "/b/dog.png?x": f"//pictures.example:{site.port}/c",
            "/c": f"{site.url('/d')}#part",
        }.get(visit.path)
        await visit.say(redirect(following, status) if following else reply())

    async with serving(script) as site:
        policy = site.policy(resolve=answering([HERE]))
        assert await fetch_image(site.url(host="a.example"), policy) == IMAGE
    hosts = [visit.headers["host"].partition(":")[0] for visit in site.visits]
    assert hosts == ["a.example", "a.example", "pictures.example", HERE]


LOCATIONS = """http://127.0.0.2:PORT/|http://localhost:PORT/|//127.0.0.2:PORT/|http://127.2:PORT/|
http://[::ffff:127.0.0.1]:PORT/|http://2130706434:PORT/|file:///etc/passwd|gopher://127.0.0.1:PORT/|
data:image/png;base64,aGk=|http://user:secret@127.0.0.1:PORT/|http://127.0.0.1:1/|http://127.0.0.1/|
/a\\b|\\\\127.0.0.2|/a b|/a\tb|http://[|http://]/|/\u200b""".replace("\n", "").split("|")


@pytest.mark.parametrize("location", [*LOCATIONS, "", "/" + "a" * 2_048])
@live
async def test_a_redirect_is_held_to_the_same_rules(location: str) -> None:
    async def script(visit: Visit) -> None:
        await visit.say(redirect(location.replace("PORT", str(site.port))))

    async def resolve(host: str, port: int) -> list[str]:
        return [HERE if host == "a.example" else ELSEWHERE]

    async with serving(script) as site, serving(reply(), ELSEWHERE, port=site.port) as secret:
        policy = site.policy(resolve=resolve)
        assert await refusal(fetch_image(site.url(host="a.example"), policy)) == NOT_ALLOWED
        assert (site.connections, secret.connections) == (1, 0)


@live
async def test_the_default_rule_refuses_a_redirect_to_loopback() -> None:
    async with serving(reply()) as inner:
        async with serving(redirect(inner.url()), ELSEWHERE, port=inner.port) as outer:
            policy = inner.policy(permit=lambda a: str(a) == ELSEWHERE or is_public(a))
            assert await refusal(fetch_image(outer.url(host=ELSEWHERE), policy)) == NOT_ALLOWED
        assert (outer.connections, inner.connections) == (1, 0)


@pytest.mark.parametrize("most", [0, 3])
@live
async def test_a_loop_of_redirects_ends(most: int) -> None:
    async with serving(redirect("/cat.png")) as site:
        assert await refusal(fetch_image(site.url(), site.policy(max_redirects=most))) == FAILED
    assert site.connections == most + 1


@live
async def test_credentials_cookies_and_proxies_are_never_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither those that a site sets nor those of this machine."""
    (tmp_path / "netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    moved = reply(b"", "302 Found", location="/b", set_cookie="session=secret; Path=/")

    async def script(visit: Visit) -> None:
        await visit.say(moved if visit.path == "/cat.png" else reply())

    async with serving(script) as site, serving(reply(b"from the proxy")) as proxy:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url(""))
            monkeypatch.setenv(name.upper(), proxy.url(""))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert await fetch_image(site.url(), site.policy()) == IMAGE
        assert proxy.connections == 0
    assert [set(visit.headers) for visit in site.visits] == [HEADERS, HEADERS]


# Limits


@pytest.mark.parametrize("length", [str(len(IMAGE)), None])
@live
async def test_an_image_may_be_exactly_as_large_as_the_limit(length: str | None) -> None:
    response = reply(content_length=length)
    assert await fetch_from(response, max_bytes=len(IMAGE)) == IMAGE
    assert await refusal(fetch_from(response, max_bytes=len(IMAGE) - 1)) == TOO_LARGE


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (reply(b"", content_length=None), bytes(65_536)),
        (chunked(b""), b"10000\r\n" + bytes(65_536) + b"\r\n"),
    ],
)
@live
async def test_an_endless_body_is_cut_off(head: bytes, piece: bytes) -> None:
    sent = 0

    async def endless(visit: Visit) -> None:
        nonlocal sent
        await visit.say(head)
        while True:
            await visit.say(piece)
            sent += len(piece)

    assert await refusal(fetch_from(endless, max_bytes=2**20)) == TOO_LARGE
    assert sent < 32 * 2**20, "what lies in buffers of the system, no more"


@live
async def test_lengths_that_lie() -> None:
    async def announce(visit: Visit) -> None:
        await visit.say(reply(b"", content_length=str(33 * 2**20)))
        await visit.until_closed()

    with pytest.raises(FetchRefused, match=r"^the image is larger than 32 MiB$"):
        await fetch_from(announce)  # refused before anything is read
    assert await fetch_from(reply(content_length="8")) == IMAGE[:8]
    assert await refusal(fetch_from(reply(content_length="10000"))) == FAILED


@pytest.mark.parametrize(
    "response",
    [
        reply(gzip.compress(bytes(2**20)), content_encoding="gzip"),
        reply(content_encoding="br"),
        reply(content_encoding="identity, gzip"),
        reply(gzip.compress(bytes(2**20)), transfer_encoding="gzip, chunked", content_length=None),
        *(reply(status=status) for status in ("404 No", "500 Oops", "206 Part", "300 Many")),
        reply(b"", "204 None", content_length=None),
        reply(b"", "101 Switching Protocols", upgrade="h2c", connection="upgrade"),
        *(reply(content_length=length) for length in ("1" * 5_000, "-1", "5, 6")),
        reply(x="y" * 100_000),
        b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length",
        *(b"SSH-2.0-OpenSSH_9.6\r\n", bytes(100), b""),
    ],
)
@live
async def test_responses_that_are_no_plain_success_are_refused(response: bytes) -> None:
    assert await refusal(fetch_from(response)) == FAILED


@pytest.mark.parametrize("kind", ["text/html", "application/octet-stream", "imagery/png", "", None])
@live
async def test_only_images_are_taken(kind: str | None) -> None:
    assert await refusal(fetch_from(reply(content_type=kind))) == NOT_AN_IMAGE
    twice = reply().replace(b"content-length", f"content-type: {kind}\r\ncontent-length".encode())
    assert await refusal(fetch_from(twice)) == NOT_AN_IMAGE


def repeating(first: bytes, then: bytes, pause_s: float = 0.01) -> Script:
    async def script(visit: Visit) -> None:
        await visit.say(first)
        while then:
            await asyncio.sleep(pause_s)
            await visit.say(then)
        await visit.until_closed()

    return script


@pytest.mark.parametrize(
    "script",
    [
        repeating(b"", b""),
        repeating(reply(IMAGE[:8], content_length="9"), b""),
        repeating(reply(b"", content_length="100000"), b"x"),
        repeating(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
        repeating(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n", pause_s=0),
        repeating(b"", redirect("/again"), pause_s=0.1),
    ],
)
@live
async def test_the_deadline_covers_everything(script: Script) -> None:
    with pytest.raises(FetchRefused, match=r"^the image took longer than 0.25 s to fetch$"):
        await fetch_from(script, timeout_s=0.25, max_redirects=99)


@live
async def test_the_deadline_covers_lookups_and_handshakes() -> None:
    async def never(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    policy = FetchPolicy(resolve=never, timeout_s=0.05)
    assert await refusal(fetch_image("http://a.example/", policy)) == TIMEOUT
    async with serving(b"") as site:  # waits for a line, and gets a TLS greeting
        policy = site.policy(timeout_s=0.25)
        assert await refusal(fetch_image(site.url(scheme="https"), policy)) == TIMEOUT


@live
async def test_others_are_served_while_a_body_of_tiny_chunks_is_read() -> None:
    chunks, turns = b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n", 0
    async with serving(chunked(chunks)) as site:
        fetching = asyncio.create_task(fetch_image(site.url(), site.policy()))
        while not fetching.done():
            await asyncio.sleep(0)
            turns += 1
        assert await fetching == b"x" * 40_000
    assert turns > len(chunks) / 4_096


@live
async def test_giving_up_closes_the_connection() -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def script(visit: Visit) -> None:
        await visit.say(reply(IMAGE[:8], content_length="9"))
        begun.set()
        await visit.until_closed()
        gone.set()

    async with serving(script) as site:
        fetching = asyncio.create_task(fetch_image(site.url(), site.policy()))
        await begun.wait()
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await gone.wait()


@live
async def test_closed_ports_and_broken_connections_are_ordinary_failures() -> None:
    async def reset(visit: Visit) -> None:
        linger = struct.pack("ii", 1, 0)  # end without a farewell
        visit.writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, linger
        )

    assert await refusal(fetch_from(reset)) == FAILED
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind((HERE, 0))
        site = Site(taken.getsockname()[1])
        assert await refusal(fetch_image(site.url(), site.policy())) == FAILED


# TLS


class Certificates(NamedTuple):
    server: ssl.SSLContext  # is pictures.example
    client: ssl.SSLContext  # trusts it


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -keyout key.pem "
        "-out cert.pem -addext subjectAltName=DNS:pictures.example"
    )
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return Certificates(server, ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))


@live
async def test_tls_is_with_the_host_and_not_with_its_address(certificates: Certificates) -> None:
    names: list[str | None] = []
    certificates.server.sni_callback = lambda _, name, __: names.append(name)

    async def script(visit: Visit) -> None:
        await visit.say(reply())
        await visit.until_closed()  # an end of TLS that is not waited for

    async with serving(script, ssl=certificates.server) as site:
        policy = site.policy(resolve=answering([HERE]), tls=certificates.client)
        url = site.url(host="pictures.example", scheme="https")
        assert await fetch_image(url, policy) == IMAGE
        other, number = (site.url(host=host, scheme="https") for host in ("other.example", HERE))
        assert await refusal(fetch_image(other, policy)) == FAILED
        assert await refusal(fetch_image(number, policy)) == FAILED
        assert await refusal(fetch_image(url, replace(policy, tls=None))) == FAILED  # not known
        plain = site.url(host="pictures.example")
        assert await refusal(fetch_image(plain, policy)) == FAILED
    assert names == ["pictures.example", "other.example", None, "pictures.example"]
    assert [visit.headers["host"] for visit in site.visits] == [f"pictures.example:{site.port}"]


@live
async def test_a_redirect_never_leaves_tls(certificates: Certificates) -> None:
    async with serving(reply()) as plain:
        away = redirect(plain.url(host="pictures.example"))
        async with serving(away, ssl=certificates.server) as secure:
            ports = frozenset({plain.port, secure.port})
            policy = secure.policy(ports=ports, resolve=answering([HERE]), tls=certificates.client)
            url = secure.url(host="pictures.example", scheme="https")
            assert await refusal(fetch_image(url, policy)) == NOT_ALLOWED
        assert (len(secure.visits), plain.connections) == (1, 0)


# Any URL

WORDS = """
http:// https:// HTTP:// file:// // : / ? # @ \\ % . [ ] [::1] 127.0.0.1 127.1 0x7f 2130706433
8.8.8.8 :80 :443 localhost a.example xn-- xn--a ü 。 ١ ß ſ İ - _ %25eth0 ::ffff:127.0.0.1
""".split()
PIECES = st.sampled_from([*WORDS, "\ud800", "\x00", "\r\n", "\t", " ", "\u200d", "a" * 64])
URLS = st.one_of(
    st.text(),
    st.lists(PIECES | st.text(max_size=3), max_size=8).map("".join),
    st.builds("http://{}/{}".format, st.text(), st.text()),
)
HOSTS = st.one_of(
    st.from_regex(r"[A-Za-z0-9_ü-]{1,9}(\.[A-Za-z0-9äé-]{1,9}){0,3}", fullmatch=True),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address.exploded}]"),
)


@given(URLS)
@settings(max_examples=600)
@live
async def test_any_url_is_refused_in_the_same_words(url: str) -> None:
    """Nothing else is raised; an address that a URL happens to spell is not connected to."""
    policy = FetchPolicy(resolve=answering([HERE]), permit=lambda a: is_public(a) and False)
    with pytest.raises(FetchRefused) as caught:
        await fetch_image(url, policy)
    assert caught.value.args == (MESSAGES[NOT_ALLOWED],)


@given(st.sampled_from(["http", "HTTPS"]), HOSTS, st.sampled_from(["", ":80", ":443"]), st.text())
def test_a_url_that_is_accepted_reads_the_same_elsewhere(
    scheme: str, host: str, port: str, path: str
) -> None:
    url = f"{scheme}://{host}{port}/{''.join(filter(str.isprintable, path)).replace(' ', '')}"
    try:
        target = parse(url, FetchPolicy())
    except FetchRefused:
        assume(False)
    assert parse(target.url, FetchPolicy()) == target
    other = urlsplit(target.url)
    assert (other.hostname, other.username) == (str(target.host), None)
    assert (other.port or {"http": 80, "https": 443}[other.scheme]) == target.port
    if host.isascii() and not host.startswith("["):
        assert urlsplit(url).hostname == other.hostname


@given(st.lists(st.binary(max_size=30) | PIECES.map(lambda text: text.encode(errors="replace"))))
@live
async def test_any_location_is_followed_to_this_site_or_refused(pieces: list[bytes]) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return [HERE if host == "a.example" else "10.0.0.1"]

    location = b"".join(pieces).translate(None, b"\r\n\x00")
    async with serving(redirect("THERE").replace(b"THERE", location)) as site:
        fetching = fetch_image(site.url(host="a.example"), site.policy(resolve=resolve))
        assert await refusal(fetching) in (NOT_ALLOWED, FAILED)
