"""A stand-in for an OpenSearch server: the requests that our engine makes, checked strictly.

No OpenSearch can be installed where the tests run. Paths, bodies and answers follow the REST
reference of OpenSearch 3.3 and its neural search: `sparse_vector` with the method `seismic`, terms
as numbers in strings, positive weights that are stored and asked for in 8 bits. Anything else is
refused with OpenSearch's form of an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

KNOWN_PARAMETERS = {
    *("n_postings", "cluster_ratio", "summary_prune_ratio", "approximate_threshold"),
    *("quantization_ceiling_search", "quantization_ceiling_ingest"),
}


class Refused(Exception):
    def __init__(self, status: int, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        cause = {"type": kind, "reason": reason}
        self.body = {"error": {"root_cause": [cause], **cause}, "status": status}


def require(condition: object, reason: str) -> None:
    if not condition:
        raise Refused(400, "illegal_argument_exception", reason)


class StandIn:
    """What the server holds, and the requests it had."""

    def __init__(self) -> None:
        self.indexes: dict[str, dict[str, Any]] = {}
        self.seen: list[str] = []
        self.has_neural_search = True

    def answer(self, method: str, target: str, body: bytes) -> Any:
        url = urlsplit(target)
        self.seen.append(f"{method} {url.path}")
        parts = url.path.strip("/").split("/")
        if parts == ["_bulk"]:
            return self._bulk(_lines(body))
        require(parts[0] and parts[0] == parts[0].lower(), "index names are lower case")
        if len(parts) == 1 and method == "PUT":
            return self._create(parts[0], json.loads(body))
        if parts[0] not in self.indexes:
            raise Refused(404, "index_not_found_exception", f"no such index [{parts[0]}]")
        held = self.indexes[parts[0]]
        match method, parts[1:]:
            case "HEAD", []:
                return {}
            case "DELETE", []:
                del self.indexes[parts[0]]
                return {"acknowledged": True}
            case "POST", ["_refresh"]:
                held["searchable"] = dict(held["documents"])
                return {"_shards": {"total": 1, "successful": 1, "failed": 0}}
            case "POST", ["_forcemerge"]:
                require(parse_qs(url.query) == {"max_num_segments": ["1"]}, "parameters")
                return {"_shards": {"total": 1, "successful": 1, "failed": 0}}
            case "GET" | "POST", ["_count"]:
                return {"count": len(held["searchable"])}
            case "GET" | "POST", ["_msearch"]:
                lines = _lines(body)
                require(lines[::2] == [{}] * (len(lines) // 2), "headers")
                return {"responses": [_search(held, line) for line in lines[1::2]]}
        raise Refused(405, "method", f"{method} {url.path}")

    def _create(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        require(set(body) == {"settings", "mappings"}, f"unknown key in {sorted(body)}")
        require(body["settings"]["index"].pop("sparse") is True, "index.sparse must be true")
        require(set(body["settings"]["index"]) <= {"number_of_shards"}, "unknown setting")
        ((field, mapping),) = body["mappings"]["properties"].items()
        if not self.has_neural_search:
            kind = mapping["type"]
            raise Refused(
                400,
                "mapper_parsing_exception",
                f"No handler for type [{kind}] declared on field [{field}]",
            )
        require(set(mapping) == {"type", "method"}, "mapping")
        require(mapping["type"] == "sparse_vector", "type")
        require(mapping["method"]["name"] == "seismic", "method")
        parameters = mapping["method"]["parameters"]
        require(set(parameters) <= KNOWN_PARAMETERS, "parameters")
        self.indexes[name] = {
            "field": field,
            "parameters": parameters,
            "documents": {},
            "searchable": {},
        }
        return {"acknowledged": True, "shards_acknowledged": True, "index": name}

    def _bulk(self, lines: list[Any]) -> dict[str, Any]:
        items = []
        for action, source in zip(lines[::2], lines[1::2], strict=True):
            (to,) = action.values()
            require(list(action) == ["index"] and set(to) == {"_index", "_id"}, "action")
            held = self.indexes[to["_index"]]
            require(set(source) <= {held["field"]}, "field")
            vector = source.get(held["field"], {})
            ceiling = held["parameters"].get("quantization_ceiling_ingest", 3)
            held["documents"][to["_id"]] = _quantized(vector, ceiling)
            items.append({"index": {**to, "status": 201, "result": "created"}})
        return {"took": 1, "errors": False, "items": items}


def _quantized(vector: dict[str, float], ceiling: float) -> dict[int, int]:
    for term, weight in vector.items():
        require(term.isdecimal() and int(term) < 1 << 15, f"[{term}] is no token id")
        require(weight > 0, f"the weight of [{term}] must be positive")
    return {int(t): round(min(w, ceiling) / ceiling * 255) for t, w in vector.items()}


def _search(held: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
    require(set(body) == {"size", "_source", "query"}, "search body")
    ((kind, by_field),) = body["query"].items()
    require(kind == "neural_sparse" and list(by_field) == [held["field"]], "query")
    query = by_field[held["field"]]
    require(set(query) == {"query_tokens", "method_parameters"}, "query")
    method = query["method_parameters"]
    require(set(method) == {"k", "top_n", "heap_factor"} and method["top_n"] > 0, "parameters")
    ceiling = held["parameters"].get("quantization_ceiling_search", 16)
    asked = _quantized(query["query_tokens"], ceiling)
    kept = dict(sorted(asked.items(), key=lambda pair: -pair[1])[: method["top_n"]])
    scores = {
        name: sum(weight * vector.get(term, 0) for term, weight in kept.items())
        for name, vector in held["searchable"].items()
    }
    best = sorted((name for name in scores if scores[name]), key=lambda name: -scores[name])
    hits = [{"_id": name, "_score": float(scores[name])} for name in best[: body["size"]]]
    return {"took": 1, "timed_out": False, "hits": {"hits": hits}, "status": 200}


def _lines(body: bytes) -> list[Any]:
    require(body.endswith(b"\n"), "the body must be terminated by a newline")
    return [json.loads(line) for line in body.splitlines()]


@contextmanager
def serving(stand_in: StandIn) -> Iterator[str]:
    """Its address while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = 200, None
            try:
                answer = stand_in.answer(self.command, self.path, body)
            except Refused as refused:
                status, answer = refused.status, refused.body
            content = b"" if self.command == "HEAD" else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
