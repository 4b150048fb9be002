"""Attacks on the way to the app: keys, hosts, framing, browsers, bodies and forms.

Enters: where a server listens. Leaves: `Attack`s, lists of requests that belong together, each with
the statuses that may come of it. What is sent is made in `hostile_requests.py`; sending, measuring
and judging is `serve_attacks.py`'s.
"""

from __future__ import annotations

import itertools
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hostile_requests import (
    CLOSED,
    FORM,
    JSON,
    MIB,
    MODEL,
    Attack,
    Attempt,
    Reply,
    Target,
    chunked,
    file,
    form,
    part,
    small,
)

BODY_S = 75.0  # a body that never comes is waited for, for 60 s
REFUSED = (400,)
METHODS = "GET HEAD POST PUT PATCH DELETE OPTIONS TRACE".split()
ROUTES = (
    "/ /v1/models /v1/models/x /v1/ask /v1/chat/completions /v1/responses /v1/indexes "
    "/v1/indexes/x /metrics /openapi.json /static/page.js /nothing"
).split()

NEARLY = """//v1/models /health/../v1/models /HEALTH /health;x /health/ /%2e%2e/v1/models //health
/health/. /./health /health%2f..%2fv1/models /v1/models%00/health /health%00 /v1/models/../../health
/v1%2fmodels /health%2f /health%20 /healthz /static/../guard.py /static/..%2f..%2fguard.py * /%
/static/%2e%2e/%2e%2e/guard.py /static//etc/passwd /v1/indexes/..%2f.. http://127.0.0.1/v1/models
http://127.0.0.1/health/../v1/models /v1/models?/health /v1/models?x=/health""".split()


# Keys, hosts, framing


def headers(target: Target, options: Any) -> Iterator[Attack]:
    key = target.key or ""
    basic = b64encode(f"user:{key}".encode()).decode()
    wrong = [
        *([], ["Authorization: Bearer wrong"], ["Authorization: Bearer"], ["Authorization: "]),
        *([f"Authorization: Bearer {key}x"], [f"Authorization: Bearer {key[:-1]}"]),
        *([f"Authorization: Bearer {key} {key}"], [f"Authorization: {key}"]),
        *([f"Authorization: Basic {basic}"], [f"Authorization: Bearer {key.swapcase()}"]),
        *([f"X-API-Key: {key}"], ["Cookie: skipqa_key=wrong"], [f"Cookie: other={key}"]),
        *(["Cookie: skipqa_key="], [f"Cookie: skipqa_key={key}x"], ['Cookie: skipqa_key="\\777"']),
        *(
            ["Authorization: Bearer wrong", f"Authorization: Bearer {key}"],
            ["Authorization: Bearer é"],
        ),
    ]
    tries = [
        target.request(f"{method} {route}", b"", given, key=None)
        for method, route, given in itertools.product(METHODS, ROUTES, wrong)
    ]
    yield Attack("every route and method without the key", tries, (401,), at_once=4)
    query = [f"GET {route}?key={key}" for route in ROUTES if route != "/"]
    query += [
        f"POST /?key={key}",
        f"GET /?key=wrong&key={key}",
        f"GET /?KEY={key}",
        f"GET //?key={key}",
    ]
    yield Attack("a key in a query", [target.request(q, key=None) for q in query], (401,))
    tries = [
        target.request(f"GET {path}", key=given) for path in NEARLY for given in (None, "wrong")
    ]
    yield Attack("paths that resemble /health", tries, (400, 401))
    hosts = [
        "x/health?",
        "x",
        "evil.example",
        f"u@{target.authority}",
        f"{target.authority}/health",
    ]
    hosts += [
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:123456",
        "127.0.0.1, x",
        "[::1",
        "é",
        "127.0.0.1\t.x",
    ]
    hosts += [
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "0x7f.1",
        "*",
        "",
        "127.0.0.1 x",
        "[::1]x",
    ]
    tries = [
        target.request(f"GET {path}", key=given, host=None if host is None else host or " ")
        for path in ("/health", "/v1/models")
        for host in (*hosts, None)
        for given in (None, "")
    ]
    two = [["Host: x"], [f"Host: {target.authority}"]]
    tries += [target.request("GET /v1/models", b"", extra) for extra in two]
    tries += [target.request("GET /v1/models HTTP/1.0", host=None)]
    yield Attack("hosts", tries, REFUSED)
    weird = [
        "Cookie: " + "a=b; " * 1_000,
        "Cookie: ;;;=\x80; a b",
        "Range: bytes=0-",
        "TE: trailers",
    ]
    weird += [
        "X-Forwarded-Host: x",
        "X-Original-URL: /health",
        "X-Rewrite-URL: /health",
        "Upgrade: h2c",
    ]
    weird += ["X-HTTP-Method-Override: GET", "X-Forwarded-For: 127.0.0.1", "Forwarded: host=x"]
    weird += ["Connection: Upgrade\r\nUpgrade: websocket", "Connection: Upgrade\r\nUpgrade: h2c"]
    tries = [target.request("GET /v1/models", b"", [one], key=None) for one in weird]
    yield Attack("headers of proxies and upgrades", tries, (401,))


def smuggling(target: Target, options: Any) -> Iterator[Attack]:
    second = target.request("GET /health", key=None)
    json_ = f"Content-Type: {JSON}"
    both = ["Content-Length: 5\r\nTransfer-Encoding: chunked"]
    both += ["Transfer-Encoding: chunked\r\nContent-Length: 5"]
    two = ["Content-Length: 5\r\nContent-Length: 6", "Content-Length: 5\r\nContent-Length: 5"]
    odd = "+5|-5|0x5|5, 5|5 5|5;|05 x|５".encode("latin-1", "replace").decode("latin-1").split("|")
    coded = (
        "xchunked|chunked, identity|identity|\vchunked|chunked\x0b|chunked;x|x, chunked, x".split(
            "|"
        )
    )
    given = [*both, *two, *(f"Content-Length: {one}" for one in odd)]
    given += [f"Transfer-Encoding: {one}" for one in coded]
    given += [
        "Transfer-Encoding : chunked",
        "X: y\r\n Transfer-Encoding: chunked",
        "X\0: y",
        "X: a\0b",
    ]
    tries = [target.request(CHAT, b"", [json_, one]) + b"0\r\n\r\n" + second for one in given]
    start = target.request(CHAT, b"", [json_, "Transfer-Encoding: chunked"])
    sizes = ["-1", "g", "0x1", "1 ", " 1", "+1", "FFFFFFFFFFFFFFFFF", ""]
    tries += [start + f"{size}\r\n".encode() + b"x\r\n0\r\n\r\n" + second for size in sizes]
    tries += [
        b"GET /v1/models HTTP/1.1\nHost: 127.0.0.1\n\n",
        b"GET /v1/models HTTP/1.1\rHost: x\r\r\r\n\r\n",
    ]
    tries += [
        b"GET /v1/models HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02" + bytes(99) + b"\r\n\r\n",
        b" \r\n\r\n",
    ]
    tries += [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET  /health HTTP/1.1\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\n\r\n",
    ]

    name, allowed = "two lengths, odd lengths, odd chunks", (400, 408, 415, CLOSED)
    yield Attack(name, tries, allowed, at_once=4, limit_s=BODY_S)

    def whole(data: bytes) -> Callable[[], Reply]:
        """Of a request and what comes after it, as some program before the server may read it."""

        def reply() -> Reply:
            found = target.everything(data)
            return Reply("answered" if b'{"status"' in found else "refused")

        return reply

    length = f"Content-Length: {len(second) + 5}"  # by one reading all of it, by the other 5 bytes
    others = ("Transfer-Encoding: chunked", "Content-Length: 5")
    given = [f"{length}\r\n{other}" for other in others]
    given += [f"{other}\r\n{length}" for other in others]
    hidden = [target.request(CHAT, b"", [json_, one]) + b"0\r\n\r\n" + second for one in given]
    replies = [whole(data) for data in hidden]
    yield Attack("a request inside of another", replies, ("refused",), at_once=4)


def connections(target: Target, options: Any) -> Iterator[Attack]:
    start = target.request("GET /v1/models", key=None)[:-2]

    def bomb(first: bytes, block: bytes) -> Callable[[], Iterable[bytes]]:
        return lambda: itertools.chain([first], itertools.repeat(block, 16 * MIB // len(block)))

    bombs = [
        bomb(start, b"a: b\r\n" * 10_000),
        bomb(start + b"X: ", b"a" * 65_536),
        bomb(start, b"a" * 65_536),
        bomb(b"GET /", b"a" * 65_536),
        bomb(b"", b"A" * 65_536),
        bomb(b"", b"\r\n" * 32_768),
    ]
    yield Attack("endless heads", bombs, (400, 413, 414, 431, CLOSED), at_once=2)

    def drip() -> Iterator[bytes]:
        for place in range(60):
            yield start[place : place + 1]
            time.sleep(1)

    silent: list[Attempt] = [b"", b"GET", start, drip]
    yield Attack("who says nothing", silent * 25, (400, 408, CLOSED), at_once=100, limit_s=45)
    pipelined = target.request("GET /v1/models", key=None) * 1_000
    yield Attack("1,000 requests in one breath", [pipelined], (401,))


def browsers(target: Target, options: Any) -> Iterator[Attack]:
    own = f"http://{target.authority}"
    others = [
        f"{own}.evil.example",
        f"http://{target.authority}@evil.example",
        "null",
        "http://[",
        "é",
    ]
    others += [
        "https://evil.example",
        "http://evil.example",
        "http://localhost:1",
        "http://[::1]:x",
        "x",
    ]
    others += [
        f"{own}/",
        f"http://evil.example/{own}",
        "",
        "http://",
        "file://",
        "http://127.0.0.1:99999",
    ]
    others.remove(f"{own}/")  # a browser sends none with a path
    kinds = (f"Content-Type: {JSON}", "Content-Type: text/plain", "Content-Type: x/y")
    posts = [("POST", route) for route in ROUTES] + [("DELETE", "/v1/indexes/x")]
    tries = [
        target.request(f"{method} {route}", b"{}", [f"Origin: {origin}", kind])
        for (method, route), origin, kind in itertools.product(posts, others, kinds)
    ]
    yield Attack("from pages of other sites", tries, (403,), at_once=4)
    sites = [[f"Sec-Fetch-Site: {site}"] for site in ("cross-site", "same-site", "x", "")]
    tries = [target.request(f"{m} {r}", b"{}", site) for m, r in posts for site in sites]
    yield Attack("by Sec-Fetch-Site", tries, (403,))
    ask = ["Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization"]
    tries = [
        target.request(f"OPTIONS {route}", b"", [f"Origin: {origin}", *ask], key=given)
        for route in ROUTES
        for origin in ("https://evil.example", "null")
        for given in (None, "")
    ]
    yield Attack("preflights", tries, (401, 404, 405))
    rebound = [target.request(f"GET {r}", host=f"evil.example:{target.port}") for r in ROUTES]
    yield Attack("a name that was made to point here", rebound, REFUSED)
    if target.key is not None:
        entry = [target.request(f"GET /?key={target.key}", key=None)]

        def check(reply: Reply) -> str:
            flags = reply.headers.get("set-cookie", "").lower()
            held = all(flag in flags for flag in ("httponly", "samesite=strict", "path=/"))
            return "" if held and reply.headers.get("location") == "/" else f"the cookie: {flags}"

        yield Attack("the cookie of a key", entry, (303,), check=check)


# Bodies

VALID = b'"model":"skipqa-pocket","messages":[{"role":"user","content":"?!"}]'
CHAT, UPLOAD = "POST /v1/chat/completions", "POST /v1/indexes"


def bodies(target: Target, options: Any) -> Iterator[Attack]:
    def typed(kind: str | None, body: bytes, line: str = CHAT) -> bytes:
        return target.request(line, body, [] if kind is None else [f"Content-Type: {kind}"])

    def head(line: str, *headers: str, kind: str = JSON) -> bytes:
        return target.request(line, b"", [f"Content-Type: {kind}", *headers])

    def endless(line: str, kind: str, block: bytes) -> Callable[[], Iterable[bytes]]:
        start = head(line, "Transfer-Encoding: chunked", kind=kind)
        return lambda: itertools.chain([start], chunked(itertools.repeat(block)))

    lines = (CHAT, "POST /v1/responses")
    tries = [endless(line, JSON, b" " * 65_536) for line in lines]
    tries.append(endless("POST /v1/ask", FORM, bytes(65_536)))
    photo = form([file("photo", "p", b"")], b"")[:-10] + bytes(65_536)
    tries.append(endless("POST /v1/ask", FORM, photo))
    yield Attack("endless", tries, (400, 413), at_once=4)
    yield Attack("endless upload", [endless(UPLOAD, "text/plain", bytes(1 << 20))], (400, 413, 415))
    yield Attack("33 MiB", [typed(JSON, b" " * (33 * MIB)), target.ask(bytes(33 * MIB))], (413,))
    shorter = [
        head(CHAT, "Content-Length: 9") + b"{",
        head("POST /v1/ask", "Content-Length: 99", kind=FORM),
    ]
    shorter += [head(CHAT, "Transfer-Encoding: chunked") + b"5\r\n{"]
    yield Attack("shorter than it says", shorter, (408,), at_once=3, limit_s=BODY_S)
    longer = [head(CHAT, "Content-Length: 1") + b"{" * 9, head(CHAT) + b"{}" * 9]
    yield Attack("longer than it says", longer, REFUSED)
    huge = [head(CHAT, f"Content-Length: {'9' * digits}") for digits in (9, 18, 20, 300, 5_000)]
    yield Attack("lengths beyond all", huge, (400, 413, 431))

    deep = [b"[" * 10_000, b'{"a":' * 10_000, b"[" * 10_000 + b"]" * 10_000, b"[" * MIB]
    deep += [
        b"{" + VALID + b',"x":' + b"[" * depth + b"]" * depth + b"}" for depth in (900, 50_000)
    ]
    yield Attack("deep nesting", [typed(JSON, body) for body in deep], REFUSED)
    numbers = "NaN Infinity -Infinity 1e999 -1 9e99 1e-999 -0.0 true null [] {} 0x1 1_0 01".split()
    numbers += ["9" * 4_000, "9" * 5_000, "-" + "9" * 40, "0." + "0" * 9_000 + "1", '"1"', '"NaN"']
    names = (
        "temperature top_p seed n max_tokens max_completion_tokens presence_penalty stream".split()
    )
    fields = [f'"{name}":{number},'.encode() for name in names for number in numbers]
    options_ = ("tokens", "passages", "threshold", "timeout", "fast_path", "system", "citations")
    fields += [f'"skip":{{"{n}":{number}}},'.encode() for n in options_ for number in numbers]
    yield Attack("numbers", [typed(JSON, b"{" + one + VALID + b"}") for one in fields], REFUSED, 8)
    double = [b"{" + VALID + b"," + VALID + b"}", b'{"model":1,' + VALID + b',"model":[]}']
    broken = [b"\xff\xfe{", b'{"model":"\xff"}', VALID.decode().encode("utf-16"), b"\xef\xbb\xbf{}"]
    broken += [b"null", b"1", b'""', b"[]", b"{}", b"\0", b"{" + VALID, b"\x1f\x8b" + bytes(99)]
    yield Attack("broken JSON", [typed(JSON, body) for body in (*double, *broken)], (400, 415))
    kinds = (
        "text/plain application/xml text/html application/octet-stream multipart/form-data x / ;"
    )
    kinds += (
        " application/json;charset=utf-7 application/json,text/plain multipart/mixed;boundary=x"
    )
    wrong = [typed(kind, b"{" + VALID + b"}") for kind in (None, *kinds.split())]
    yield Attack("wrong content types", wrong, (400, 415))
    empty = [head(line, "Content-Length: 0") for line in (*lines, "POST /v1/ask", UPLOAD)]
    yield Attack("empty", [*empty, *(head(line) for line in lines)], (400, 415))

    for name, block in (("lists", b"[],"), ("objects", b'{"":{}},'), ("numbers", b"1.5,")):
        body = b'{"x":[' + block * (31 * MIB // len(block)) + b"0]," + VALID + b"}"
        yield Attack(f"31 MiB of {name}, 8 at once", [typed(JSON, body)] * 8, (400, 413, 429), 8)
    wrong_part = {"type": 5, "text": 6, "image_url": 7}
    messages = [{"role": "user", "content": [wrong_part] * 256}] * 256
    yield Attack(
        "65,536 wrong parts", [target.json({"model": MODEL, "messages": messages})], REFUSED
    )


def forms(target: Target, options: Any) -> Iterator[Attack]:
    ask = "/v1/ask"
    many = [part("question", "?!"), *(part("x", "y") for _ in range(10_000))]
    files = [part("question", "?!"), *(file("photo", "p", b"x") for _ in range(10_000))]
    yield Attack("10,000 parts", [target.form(ask, many), target.form(ask, files)], REFUSED)
    whole = form([part("question", "?!"), file("photo", "p", small("PNG"))])
    kinds = [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=x",
    ]
    kinds += [f"multipart/form-data; boundary={'x' * 5_000}", 'multipart/form-data; boundary="']
    kinds += [
        f"{FORM}; boundary=x",
        "multipart/form-data; boundary=é",
    ]
    tries = [target.request(f"POST {ask}", whole, [f"Content-Type: {kind}"]) for kind in kinds]
    kind = f"Content-Type: {FORM}"
    heads = [whole[:-4], whole[:-30], whole.replace(b"\r\n", b"\n"), b"\r\n" * 9_999, b"-" * MIB]
    heads += [form([b"X: " + b"a" * MIB + b"\r\n\r\n"]), form([b"X: y\r\n" * 9_999 + b"\r\n"])]
    heads += [
        form([b"Content-Disposition: form-data\r\n\r\nx"]),
        form([b"\r\n\r\n"]),
        form([b":\r\n\r\n"]),
    ]
    heads += [
        form([part("question", "?!"), part("index", b"\xff\xfe"), part("tokens", "9" * 5_000)])
    ]
    heads += [form([part("question", b"a" * (2 * MIB))]), form([part("a" * 5_000, "b")])]
    tries += [target.request(f"POST {ask}", body, [kind]) for body in heads]
    yield Attack("broken forms", tries, REFUSED)
    uploads = [target.request(UPLOAD, body, [kind]) for body in heads]
    yield Attack("broken uploads", uploads, (400, 415))
    codecs = "undefined idna punycode unicode_escape utf-7 utf-16 hex rot13 x .. aliases".split()
    named = form([part("name", b"n\\ud800\xff\xd8"), file("files", "\\ud800.txt", b"x")])
    asked = form([part("question", b"?!\xbf\xa1")])
    tries = [
        target.request(line, body, [f"{kind}; charset={codec}"])
        for codec in codecs
        for line, body in ((UPLOAD, named), (f"POST {ask}", asked))
    ]
    yield Attack("strange encodings", tries, (200, 400))
    plain = "Content-Type: application/x-www-form-urlencoded"
    encoded = [b"&" * (8 * MIB), b"name=" + b"a" * (8 * MIB), b"a=&" * 9_999, b"name=x&files=y"]
    tries = [target.request(UPLOAD, body, [plain]) for body in encoded]
    yield Attack("a form of another kind", tries, (400, 415))
    names = [
        "../../../etc/cron.d/x",
        "/etc/passwd",
        "C:\\x",
        "a\\0b",
        "\\r\\nX: y",
        "é",
        "a" * 4_000,
    ]
    photo = small("PNG")
    tries = [
        target.form(ask, [part("question", "?!"), file("photo", name, photo)]) for name in names
    ]
    yield Attack("file names of a photo", tries, REFUSED)
