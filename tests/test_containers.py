"""The files for containers, read and not run: what they refer to exists, and they are closed."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer

import skipqa
from skipqa.cli.main import app
from skipqa.knowledge.default import DEFAULT_SOURCES, OPTIONAL, default_indexes
from skipqa.knowledge.engines import parse_uri
from skipqa.knowledge.engines.milvus import Options
from skipqa.knowledge.engines.options import read_options

ROOT = Path(skipqa.__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
COMPOSE = ("compose.yaml", "compose.milvus.yaml")


def read_dockerfile() -> list[tuple[str, str]]:
    """(instruction, its arguments), lines that go on joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


DOCKERFILE = read_dockerfile()
LAST_STAGE = DOCKERFILE[max(n for n, (name, _) in enumerate(DOCKERFILE) if name == "FROM") :]


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in DOCKERFILE if name == instruction]


def build_args() -> dict[str, str]:
    return dict(rest.split("=", 1) for rest in arguments("ARG"))


def environment() -> dict[str, str]:
    """Of the last stage."""
    given = [rest for name, rest in LAST_STAGE if name == "ENV"]
    return dict(pair.split("=", 1) for rest in given for pair in shlex.split(rest))


def parsed(command: list[str]) -> typer.Context:
    """A `skipqa …` command as the command line reads it; one that cannot be read is an error."""
    program, *words = command
    assert program == "skipqa"
    found: Any = typer.main.get_command(app)
    while hasattr(found, "commands"):
        name = words.pop(0)
        assert name in found.commands, f"no command {name}"
        found = found.commands[name]
    context: typer.Context = found.make_context(name, words)
    return context


def test_a_wrong_command_would_be_found() -> None:
    with pytest.raises(AssertionError, match="no command sreve"):
        parsed(["skipqa", "sreve"])
    with pytest.raises(Exception, match="--hots"):
        parsed(["skipqa", "serve", "--hots=0.0.0.0"])


# The image


def test_the_base_has_a_python_that_fits() -> None:
    bases = [rest.split()[0] for rest in arguments("FROM")]
    assert set(bases) == {"python:3.12-slim"}
    assert PROJECT["requires-python"] == ">=3.11"


def test_extras_exist() -> None:
    extras = build_args()["EXTRAS"].split(",")
    assert {"serve", "fast"} <= set(extras) <= set(PROJECT["optional-dependencies"])


def ignored(path: str) -> bool:
    """By .dockerignore: the last line that speaks of a path, or of a folder it is in, decides."""
    parts = Path(path).parts
    places = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    verdict = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        bare = pattern.removeprefix("**/")
        if any(fnmatch(place, bare) or fnmatch(place, pattern) for place in places) or (
            bare != pattern and any(fnmatch(part, bare) for part in parts)
        ):
            verdict = not line.startswith("!")
    return verdict


def test_what_is_copied_exists_and_is_sent_to_the_build() -> None:
    copied = [
        source
        for rest in arguments("COPY")
        if not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert set(copied) == {"pyproject.toml", "skipqa", PROJECT["readme"], *PROJECT["license-files"]}
    for source in copied:
        assert (ROOT / source).exists()
        assert not ignored(source)
    assert not ignored("skipqa/checkpoints/pocket/reader.safetensors")


@pytest.mark.parametrize(
    "path", [".git/config", ".venv/bin/python", "tests/conftest.py", "skipqa/cli/__pycache__/a.pyc"]
)
def test_nothing_else_is(path: str) -> None:
    assert ignored(path)


def test_it_runs_as_a_user_that_owns_its_folder_alone() -> None:
    names = [name for name, _ in LAST_STAGE]
    user = dict(LAST_STAGE)["USER"]
    assert user.isdigit()
    assert int(user) > 0
    assert f"--uid {user} " in dict(LAST_STAGE)["RUN"] + " ".join(arguments("RUN"))
    home = environment()["SKIPQA_HOME"]
    assert any(f"--home-dir {home} " in rest for rest in arguments("RUN"))
    set_up = next(n for n, (_, rest) in enumerate(LAST_STAGE) if "skipqa setup" in rest)
    # What is written to a volume after it is declared would be lost.
    assert names.index("USER") < set_up < names.index("VOLUME")
    assert dict(LAST_STAGE)["VOLUME"] == home


def test_what_is_written_is_written_to_the_volume_or_to_tmp() -> None:
    given = environment()
    assert given["NUMBA_CACHE_DIR"].startswith("/tmp/")
    assert given["PYTHONDONTWRITEBYTECODE"] == "1"


def test_commands_exist() -> None:
    parsed(["skipqa", "setup"])
    (command,) = arguments("CMD")
    context = parsed(json.loads(command))
    assert context.info_name == "serve"
    assert context.params["host"] == "0.0.0.0"
    assert arguments("EXPOSE") == [str(context.params["port"])]
    assert arguments("STOPSIGNAL") == ["SIGTERM"]


def test_no_key_is_in_the_image() -> None:
    for rest in (*arguments("ENV"), *arguments("ARG")):
        assert "KEY" not in rest


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert self.path == "/health"
        self.send_response(self.server.status)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def healthy() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Health)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_health_check_checks_health(healthy: HTTPServer) -> None:
    (check,) = arguments("HEALTHCHECK")
    program, option, code = json.loads(check[check.index("[") :])
    assert (program, option) == ("python", "-c")
    (port,) = arguments("EXPOSE")
    assert code.count(port) == 1

    def run(at: int) -> int:
        command = [sys.executable, "-c", code.replace(port, str(at))]
        proxy = {"http_proxy": "http://127.0.0.1:1"}
        return subprocess.run(command, env=proxy, stderr=subprocess.DEVNULL).returncode

    for healthy.status, expected in ((200, 0), (503, 1)):  # type: ignore[attr-defined]
        assert run(healthy.server_address[1]) == expected
    healthy.server_close()
    assert run(healthy.server_address[1]) == 1


# Compose


def services(name: str) -> dict[str, dict[str, Any]]:
    return read_compose(name)["services"]


def read_compose(name: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return found


@pytest.mark.parametrize("name", COMPOSE)
def test_services_of_the_image_are_closed(name: str) -> None:
    home = environment()["SKIPQA_HOME"]
    own = {key: service for key, service in services(name).items() if "build" in service}
    assert "server" in own
    for service in own.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["volumes"] == [f"home:{home}"]
        assert [place.split(":")[0] for place in service["tmpfs"]] == ["/tmp"]


@pytest.mark.parametrize("name", COMPOSE)
def test_only_the_server_is_reached_and_from_this_machine_only(name: str) -> None:
    (port,) = arguments("EXPOSE")
    ports = {key: service["ports"] for key, service in services(name).items() if "ports" in service}
    assert ports == {"server": [f"127.0.0.1:{port}:{port}"]}


@pytest.mark.parametrize("name", COMPOSE)
def test_no_secret_has_a_default(name: str) -> None:
    for service in services(name).values():
        for variable, value in service.get("environment", {}).items():
            if re.search("KEYS|SECRET|PASSWORD", variable):
                assert re.fullmatch(r"\$\{[A-Z_]+:\?set [^}]+\}", value), variable
    assert "SKIPQA_API_KEYS" in services(name)["server"]["environment"]


@pytest.mark.parametrize("name", COMPOSE)
def test_a_file_declares_what_it_uses(name: str) -> None:
    document = read_compose(name)
    used = {v.split(":")[0] for s in services(name).values() for v in s.get("volumes", ())}
    assert used == set(document["volumes"])
    networks = {n for s in services(name).values() for n in s.get("networks", ())} - {"default"}
    assert networks == set(document.get("networks", {}))
    for key, service in services(name).items():
        for other in service.get("depends_on", {}):
            assert other in services(name), key


@pytest.mark.parametrize("name", COMPOSE)
def test_stopping_leaves_time_for_the_servers_own_grace(name: str) -> None:
    grace = parsed(["skipqa", "serve"]).params["grace"]
    assert int(services(name)["server"]["stop_grace_period"].removesuffix("s")) > grace


def test_images_of_others_are_pinned_and_name_no_host() -> None:
    others = {s["image"] for s in services("compose.milvus.yaml").values() if "build" not in s}
    assert len(others) == 3
    for image in others:
        assert re.fullmatch(r"[a-z]+/[a-z]+:[\w.-]*\d[\w.-]*", image), image


def test_milvus_holds_the_default_indexes() -> None:
    document = services("compose.milvus.yaml")
    home = Path(environment()["SKIPQA_HOME"])
    folders = [
        home / "indexes" / default_indexes()[n].name for n in DEFAULT_SOURCES if n not in OPTIONAL
    ]
    server, fill = (parsed(document[name]["command"]) for name in ("server", "fill"))
    assert server.info_name == "serve"
    assert server.params["host"] == "0.0.0.0"
    assert fill.info_name == "search"
    uris = list(server.params["index"])
    assert [fill.params["uri"], *fill.params["index"]] == uris, "what is filled is what is served"
    for uri, folder in zip(uris, folders, strict=True):
        engine, path, options = parse_uri(uri)
        assert (engine, path) == ("milvus", folder)
        assert read_options(Options, engine, options).uri == "http://milvus:19530"
    assert "milvus" in document
    assert document["server"]["depends_on"] == {
        "fill": {"condition": "service_completed_successfully"}
    }


def test_the_server_of_milvus_has_its_client() -> None:
    document = services("compose.milvus.yaml")
    extras = document["server"]["build"]["args"]["EXTRAS"].split(",")
    assert {*build_args()["EXTRAS"].split(","), "milvus"} == set(extras)
    assert set(extras) <= set(PROJECT["optional-dependencies"])


def test_milvus_and_minio_agree() -> None:
    document = services("compose.milvus.yaml")
    milvus, minio = document["milvus"]["environment"], document["minio"]["environment"]
    assert milvus["MINIO_ACCESS_KEY_ID"] == minio["MINIO_ROOT_USER"]
    assert milvus["MINIO_SECRET_ACCESS_KEY"] == minio["MINIO_ROOT_PASSWORD"]
    for place in (milvus["MINIO_ADDRESS"], milvus["ETCD_ENDPOINTS"]):
        assert place.split(":")[0] in document
    assert read_compose("compose.milvus.yaml")["networks"]["storage"]["internal"] is True
    for name in ("milvus", "etcd", "minio"):
        assert document[name]["networks"] == ["storage"]
        assert "healthcheck" in document[name]


@pytest.mark.parametrize("name", ["Dockerfile", *COMPOSE])
def test_a_reader_is_told_that_it_is_not_run_here(name: str) -> None:
    comments = " ".join(re.findall(r"^# ?(.*)$", (ROOT / name).read_text(), re.MULTILINE))
    assert re.search(r"CI (?:neither builds nor runs|does not run) this file", comments)
    assert "tests/test_containers.py" in comments
