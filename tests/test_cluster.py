"""Addresses of Ray clusters: given or none, never guessed, and a dead one is told at once."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from skipqa.cluster import check, connect, environment, named, parse
from skipqa.errors import UserError


def dead_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_addresses_have_a_host_and_a_port() -> None:
    assert parse("10.0.0.5:6379") == ("10.0.0.5", 6379)
    assert parse("ray://head:10001") == ("head", 10001)
    assert parse("[::1]:6379") == ("::1", 6379)
    for bad in ("auto", "local", "head", ":6379", "head:", "head:x", "head:0", "head:65536"):
        with pytest.raises(UserError, match="give HOST:PORT"):
            parse(bad)


def test_a_dead_address_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{dead_port()}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    started = time.monotonic()
    with pytest.raises(UserError, match=rf"no Ray cluster answers at {address} \(Connection ref"):
        connect("this test")
    assert time.monotonic() - started < 5
    with pytest.raises(UserError, match="no Ray cluster answers"):
        check("no-such-host.invalid:6379")


def test_an_option_is_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert named() == ""
    monkeypatch.setenv("RAY_ADDRESS", "a:1")
    assert (named(), named("b:2")) == ("a:1", "b:2")


def test_workers_elsewhere_know_our_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SKIPQA_HOME", "cache")
    monkeypatch.setenv("SKIPQA_DEVICE", "cuda")
    monkeypatch.delenv("SKIPQA_WEIGHTS", raising=False)
    assert environment() == {"SKIPQA_HOME": str(tmp_path / "cache"), "SKIPQA_DEVICE": "cuda"}
