"""A client of `skipqa serve`, with the standard library alone.

    client = skipqa.Client("http://127.0.0.1:8000", key="…")
    answer = client.ask("photo.jpg", "How is this drink brewed?")

Enters: the address of a server and a key, then photos, questions and documents. Leaves: answers,
models and indexes as the server gives them, or a `ClientError` with the server's own line. The key
goes to this address and nowhere else: redirects are not followed, proxies of the environment are
not used, and no message or `repr` holds it. Folders are read piece by piece while they are sent.
It does not know how a question is answered.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import parse_qs, urlsplit

from skipqa.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

Photo: TypeAlias = "Path | str | bytes | IO[bytes] | Image.Image"
Paths = Path | str | Sequence[Path | str]
Progress = Callable[[str, int, int | None], None]  # the step, how much of it is done, of how much
System = Literal["skip", "dense", "no-retrieval"]

KEY_VARIABLE = "SKIPQA_API_KEY"
INDEX_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
BUSY = (429, 503)  # the question was not accepted and may be sent again
PIECE = 1 << 16  # bytes read and sent at a time
LARGEST_REPLY = 64 << 20  # bytes; an answer has some ten thousand
LOSSLESS_PIXELS = (
    4_000_000  # an image of more is sent as JPEG, as PNG it would be tens of megabytes
)
SHORTEST_PAUSE, LONGEST_PAUSE = 0.25, 4.0  # seconds, where the server does not say how long


class ClientError(UserError):
    """The server refused, failed or was out of reach; `status` and `code` are its own, if any."""

    def __init__(self, message: str, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True, slots=True)
class ServedPassage:
    """A passage that the decoder read; `score` is the verifier's."""

    id: str
    title: str
    text: str
    score: float | None
    region: int | None


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """An answer of a server, in the words of `skipqa.Answer`."""

    text: str
    confidence: float | None
    grounded: bool | None
    certainty: str
    route: str
    evidence: tuple[ServedPassage, ...]
    regions: tuple[Mapping[str, Any], ...] = field(repr=False, hash=False)  # as served
    flops: int
    latency_ms: float
    raw: Mapping[str, Any] = field(repr=False, compare=False)  # all that the server said
    photo: Path | bytes | None = field(default=None, repr=False, compare=False)

    def _repr_html_(self) -> str:
        from skipqa.image import open_image
        from skipqa.notebook import html, thumbnail

        source = BytesIO(self.photo) if isinstance(self.photo, bytes) else self.photo
        picture = None
        with suppress(UserError):  # the file may have changed since; the answer has not
            picture = None if source is None else thumbnail(open_image(source))
        return html(self.raw["skip"], picture)


def _answer(body: Mapping[str, Any], photo: Path | bytes | None) -> ServedAnswer:
    outline = body["skip"]
    return ServedAnswer(
        text=str(outline["answer"]),
        confidence=outline["confidence"],
        grounded=outline["grounded"],
        certainty=str(outline["certainty"]),
        route=str(outline["route"]),
        evidence=tuple(
            ServedPassage(p["id"], p["title"], p["text"], p["verification"], p["region"])
            for p in outline["passages"]
            if p["cited"]
        ),
        regions=tuple(dict(region) for region in outline["regions"]),
        flops=int(outline["flops"]),
        latency_ms=float(outline["latency_ms"]),
        raw=body,
        photo=photo,
    )


class Form:
    """A multipart/form-data body that is read while it is sent, and again if it is sent again."""

    def __init__(self) -> None:
        boundary = secrets.token_hex(16)  # nothing that is sent can know it
        self.content_type = f"multipart/form-data; boundary={boundary}"
        self._start, self._end = f"--{boundary}\r\n", f"--{boundary}--\r\n".encode()
        self._parts: list[tuple[bytes, bytes | Path, int]] = []  # head, content, its size

    def add(self, name: str, value: str) -> None:
        self._add(f'name="{name}"', value.encode("utf-8", "replace"))

    def add_file(self, name: str, file_name: str, content: bytes | Path) -> None:
        """`content` is the bytes or where they lie; `file_name` may be a relative path."""
        disposition = f'name="{name}"; filename="{_quoted(file_name)}"'
        self._add(f"{disposition}\r\nContent-Type: application/octet-stream", content)

    def _add(self, disposition: str, content: bytes | Path) -> None:
        head = f"{self._start}Content-Disposition: form-data; {disposition}\r\n\r\n"
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        self._parts.append((head.encode("utf-8", "replace"), content, size))

    def __len__(self) -> int:
        """In bytes."""
        return sum(len(head) + size + 2 for head, _, size in self._parts) + len(self._end)

    def __iter__(self) -> Iterator[bytes]:
        for head, content, size in self._parts:
            yield head
            if isinstance(content, Path):
                yield from _pieces(content, size)
            else:
                yield from (content[at : at + PIECE] for at in range(0, size, PIECE))
            yield b"\r\n"
        yield self._end


def _quoted(file_name: str) -> str:
    """Percent signs for what would end the name or its line, as browsers write them."""
    return re.sub(r'["\\\x00-\x1f\x7f]', lambda found: f"%{ord(found[0]):02X}", file_name)


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    """Exactly `size` bytes: so many were announced."""
    try:
        with path.open("rb") as file:
            while size:
                piece = file.read(min(PIECE, size))
                if not piece:
                    raise UserError(f"{path} became shorter while it was sent: send it again")
                size -= len(piece)
                yield piece
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _uploads(paths: Paths) -> dict[str, Path]:
    """Files by the name they are sent under: that of the file, or the path within its folder with
    the folder's own name before it. Hidden files stay here, as do links that lead elsewhere."""
    found: dict[str, Path] = {}
    for given in [paths] if isinstance(paths, str | Path) else paths:
        path = Path(given).expanduser()
        if path.is_dir():
            base = path.resolve().name
            inside = {f"{base}/{p.relative_to(path).as_posix()}": p for p in _inside(path)}
        elif path.is_file():
            inside = {path.name: path}
        else:
            raise UserError(f"no such file or folder: {path}")
        for name, file in inside.items():
            if name in found:
                raise UserError(f"{found[name]} and {file} have the same name: rename one")
            found[name] = file
    if not found:
        raise UserError("there is no file to send")
    return found


def _inside(folder: Path) -> Iterator[Path]:
    home = folder.resolve()
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = Path(place, name)
            if path.is_file() and path.resolve().is_relative_to(home):
                yield path


def _content(photo: Any) -> tuple[str, bytes | Path]:
    """The name and the bytes of a photo, or where they lie."""
    if isinstance(photo, str | Path):
        path = Path(photo).expanduser()
        if not path.is_file():
            raise UserError(f"no such file: {path}")
        return path.name, path
    if isinstance(photo, bytes | bytearray | memoryview):
        return "photo", bytes(photo)
    if (pillow := sys.modules.get("PIL.Image")) and isinstance(photo, pillow.Image):
        return "photo", _encoded(photo)
    if callable(read := getattr(photo, "read", None)):
        data = read()
        if not isinstance(data, bytes):
            raise UserError("the photo's file is open as text: open it in binary mode")
        return "photo", data
    raise UserError(f"a photo is a path, bytes, an open file or an image, not {type(photo)}")


def _encoded(image: Image.Image) -> bytes:
    from skipqa.image import open_image

    upright, file = open_image(image), BytesIO()
    lossless = upright.width * upright.height <= LOSSLESS_PIXELS
    upright.save(file, "PNG" if lossless else "JPEG", compress_level=1, quality=95)
    return file.getvalue()


class _Patience:
    """How long a call may take from now on. What reports its progress, an upload, may take as long
    as it moves. Pauses before another attempt are never longer than `seconds` in all."""

    def __init__(self, seconds: float, progress: Progress | None = None) -> None:
        self.seconds, self._progress = seconds, progress
        self._end, self._pauses = time.monotonic() + seconds, seconds

    def moved(self, sent: int, size: int) -> None:
        if self._progress is not None:
            self._end = time.monotonic() + self.seconds
            self._progress("uploading", sent, size)

    def left(self) -> float:
        """For one more step; more than 0."""
        if (left := self._end - time.monotonic()) <= 0:
            raise TimeoutError
        return left

    def pause(self, seconds: float) -> bool:
        """Sleep, if there is time enough for it and for something after it."""
        if seconds >= min(self._pauses, self._end - time.monotonic()):
            return False
        self._pauses -= seconds
        time.sleep(seconds)
        return True


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: Any  # of its JSON; None if it was none
    retry_after: str | None

    def pause(self, attempt: int) -> float:
        """Seconds until another attempt: as many as the server says, else more each time."""
        if re.fullmatch(r"[0-9]{1,9}", said := (self.retry_after or "").strip()):
            return max(SHORTEST_PAUSE, float(said))
        return min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0 ** min(attempt, 10))


class Client:
    """Questions to one server. `key` is the server's, else `SKIPQA_API_KEY`; the address that
    `skipqa serve` prints may have it in it. `timeout` is in seconds, for an answer with all waiting
    for a busy server. One client may be used by several threads: it holds no connection."""

    def __init__(
        self, url: str = "http://127.0.0.1:8000", key: str | None = None, timeout: float = 120.0
    ) -> None:
        if not timeout > 0:
            raise UserError(f"a timeout is a number of seconds above 0, not {timeout!r}")
        self.timeout = timeout
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise UserError("the address of the server cannot be read") from None
        query = parse_qs(parts.query)
        plain = parts.username is None and not parts.fragment and set(query) <= {"key"}
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
            raise UserError("the address of a server looks like http://127.0.0.1:8000")
        self._connection = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._path = parts.hostname, port, parts.path.rstrip("/")
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        if key is None:
            key = query["key"][0] if query else os.environ.get(KEY_VARIABLE, "")
        self._key = key.strip()
        if not re.fullmatch(r"[!-~]*", self._key):  # a header takes no others
            raise UserError("the key has characters that no key has: copy it again")

    def __repr__(self) -> str:
        return f"Client({self.url!r}, {'with' if self._key else 'without'} a key)"

    def ask(
        self,
        photo: Photo | None,
        question: str,
        *,
        index: str | Sequence[str] | None = None,
        fast_path: bool = True,
        tokens: int | None = None,
        passages: int | None = None,
        threshold: float | None = None,
        system: System = "skip",
    ) -> ServedAnswer:
        """Ask about a photo, or without one by the words of the question alone.

        `index` names the indexes to search, else the server's own; without `fast_path` every
        question is looked up. `tokens` (V'), `passages` (K') and `threshold` (of the fast path)
        replace the server's settings.
        """
        form, content = Form(), None
        if photo is not None:
            name, content = _content(photo)
            form.add_file("photo", name, content)
        form.add("question", question)
        for one in [index] if isinstance(index, str) else index or ():
            form.add("index", one)
        form.add("fast_path", "true" if fast_path else "false")
        for name, value in (("tokens", tokens), ("passages", passages), ("threshold", threshold)):
            if value is not None:
                form.add(name, str(value))
        form.add("system", system)
        body = self._call("POST", "/v1/ask", form)
        try:
            return _answer(body, content)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise self._strange() from None

    def models(self) -> list[dict[str, Any]]:
        return self._listed("/v1/models")

    def indexes(self) -> list[dict[str, Any]]:
        return self._listed("/v1/indexes")

    def build_index(
        self, name: str, paths: Paths, *, wait: bool = True, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Send files and folders, and wait until the index of their texts is ready.

        `progress` is called with the step, how much of it is done, and of how much, if that is
        known. Hidden files are not sent.
        """
        form = Form()
        form.add("name", _checked(name))
        for file_name, path in _uploads(paths).items():
            form.add_file("files", file_name, path)
        found = self._call("POST", "/v1/indexes", form, progress or (lambda *_: None))
        pause = 0.1
        while wait and found.get("status") == "building":
            time.sleep(pause)
            pause = min(2.0, 1.5 * pause)
            found = self._call("GET", f"/v1/indexes/{name}")
            step = found.get("progress")
            if progress is not None and isinstance(step, dict):
                progress(str(step.get("step")), int(step.get("done") or 0), step.get("total"))
        if found.get("status") == "failed":
            reason = _line(found.get("error")) or "the server gave no reason"
            raise ClientError(f"the index {name} was not built: {reason}", code="build_failed")
        if found.get("status") not in ("building", "ready"):
            raise self._strange()
        return found

    def delete_index(self, name: str) -> None:
        self._call("DELETE", f"/v1/indexes/{_checked(name)}")

    def health(self) -> str:
        """`ok`, or `loading` while it cannot answer yet."""
        return self._health(self.timeout)

    def wait(self, timeout: float = 120.0) -> None:
        """Return once the server answers and has loaded; it need not have been started yet."""
        end, pause = time.monotonic() + timeout, 0.05
        while True:
            try:
                # A busy server has a second to say that it is loading, even at the end
                status = self._health(max(1.0, min(5.0, end - time.monotonic())))
            except ClientError as error:
                status = str(error)
            if status == "ok":
                return
            if time.monotonic() + pause >= end:
                raise ClientError(f"{self.url} is not ready after {timeout:g} s: {status}")
            time.sleep(pause)
            pause = min(1.0, 1.5 * pause)

    def _health(self, timeout: float) -> str:
        reply = self._send("GET", "/health", None, _Patience(timeout))
        if reply.status not in (200, 503) or not isinstance(reply.body, dict):
            raise self._error(reply)
        return _line(reply.body.get("status"))

    def _listed(self, path: str) -> list[dict[str, Any]]:
        found = self._call("GET", path).get("data")
        if not isinstance(found, list):
            raise self._strange()
        return found

    def _call(
        self, method: str, path: str, form: Form | None = None, progress: Progress | None = None
    ) -> dict[str, Any]:
        """The body of a reply; with `progress`, of an upload. A busy server is asked again."""
        patience, attempt = _Patience(self.timeout, progress), 0
        while True:
            reply = self._send(method, path, form, patience)
            if reply.status // 100 == 2 and isinstance(reply.body, dict):
                return reply.body
            if reply.status not in BUSY or not patience.pause(reply.pause(attempt)):
                raise self._error(reply)
            attempt += 1

    def _send(self, method: str, path: str, form: Form | None, patience: _Patience) -> _Reply:
        headers = {"Accept": "application/json", "Connection": "close"}
        if self._key and path != "/health":
            headers["Authorization"] = f"Bearer {self._key}"
        if form is not None:
            headers |= {"Content-Type": form.content_type, "Content-Length": str(len(form))}
        try:
            connection = self._connection(self._host, self._port, timeout=patience.left())
            try:
                connection.connect()
                body = None if form is None else _moving(form, connection, patience)
                # It may refuse before it has read everything, and say why.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, self._path + path, body, headers)
                return _read(connection, patience)
            finally:
                connection.close()
        except TimeoutError:
            raise ClientError(f"no answer from {self.url} within {patience.seconds:g} s") from None
        except (OSError, HTTPException, UnicodeError) as error:
            reason = _line(getattr(error, "strerror", None)) or type(error).__name__
            raise ClientError(f"no answer from {self.url}: {reason}") from None

    def _error(self, reply: _Reply) -> ClientError:
        said = reply.body.get("error") if isinstance(reply.body, dict) else None
        if isinstance(said, dict) and (message := _line(said.get("message"))):
            if reply.status == 401 and not self._key:
                message += f" (give a key, or set {KEY_VARIABLE})"
            return ClientError(message, reply.status, _line(said.get("code")) or None)
        if reply.status // 100 == 3:
            message = f"{self.url} leads to another address: give that one"
            return ClientError(message, reply.status, "redirect")
        return self._strange(reply.status)

    def _strange(self, status: int | None = None) -> ClientError:
        said = "" if status is None else f" (status {status})"
        return ClientError(f"{self.url} does not answer like skipqa serve{said}", status)


def _moving(form: Form, connection: HTTPConnection, patience: _Patience) -> Iterator[bytes]:
    """The form, each piece with the time that is left for it."""
    sent, size = 0, len(form)
    for piece in form:
        connection.sock.settimeout(patience.left())
        yield piece
        sent += len(piece)
        patience.moved(sent, size)


def _read(connection: HTTPConnection, patience: _Patience) -> _Reply:
    sock = connection.sock  # the connection lets go of it, the response does not
    sock.settimeout(patience.left())
    response = connection.getresponse()
    data = bytearray()
    with response:
        while piece := response.read1(PIECE):
            data += piece
            if len(data) > LARGEST_REPLY:
                raise ClientError("the server's reply is too long to be one", response.status)
            sock.settimeout(patience.left())
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    return _Reply(response.status, body, response.headers.get("Retry-After"))


def _checked(name: str) -> str:
    if not INDEX_NAME.fullmatch(name):
        raise UserError(f"{name!r} is no name of an index: use a-z, 0-9, - and _, 64 at most")
    return name


def _line(value: Any) -> str:
    """What a server says, as one line of reasonable length; nothing if it is no text."""
    return " ".join(value.split())[:1_000] if isinstance(value, str) else ""
