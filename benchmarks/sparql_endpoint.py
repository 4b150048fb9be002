"""A real SPARQL engine on loopback: pyoxigraph behind the SPARQL 1.1 protocol.

For benchmarks, tests, and triples of one's own:

    python benchmarks/sparql_endpoint.py triples.nt --port 7878
    skipqa ask photo.jpg "Where is this from?" --source sparql:http://127.0.0.1:7878/sparql
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from pyoxigraph import QueryResultsFormat, RdfFormat, Store

JSON = "application/sparql-results+json"
ENTITY, PROPERTY = "http://www.wikidata.org/entity/", "http://www.wikidata.org/prop/direct/"
LABEL = "http://www.w3.org/2000/01/rdf-schema#label"
ALIAS = "http://www.w3.org/2004/02/skos/core#altLabel"
DESCRIPTION = "http://schema.org/description"
WIKIBASE = "http://wikiba.se/ontology#"


class Triples:
    """Entities as Wikidata's dump has them, in N-Triples; entities and properties are numbered."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._entities: dict[str, int] = {}
        self._properties: dict[tuple[str, str], int] = {}

    def add(
        self,
        names: Sequence[str],
        facts: Mapping[str, Sequence[str]],
        described: str = "",
        things: frozenset[str] = frozenset(),
    ) -> str:
        """An entity with its label, aliases and facts by property. Values of the properties in
        `things` are entities, others are text. Returns its address."""
        thing = self._entity(f"{names[0]}#{len(self._entities)}", names[0])
        self.lines += [f"{thing} <{ALIAS}> {_text(name)} ." for name in names[1:]]
        if described:
            self.lines.append(f"{thing} <{DESCRIPTION}> {_text(described)} .")
        for name, values in facts.items():
            kind = "WikibaseItem" if name in things else "String"
            direct = self._property(name, kind)
            for value in values:
                known = self._entity(value, value) if name in things else json.dumps(value)
                self.lines.append(f"{thing} {direct} {known} .")
        return thing.strip("<>")

    def _entity(self, key: str, label: str) -> str:
        new = key not in self._entities
        number = self._entities.setdefault(key, len(self._entities) + 1)
        if new:
            self.lines.append(f"<{ENTITY}Q{number}> <{LABEL}> {_text(label)} .")
        return f"<{ENTITY}Q{number}>"

    def _property(self, label: str, kind: str) -> str:
        new = (label, kind) not in self._properties
        number = self._properties.setdefault((label, kind), len(self._properties) + 1)
        direct = f"<{PROPERTY}P{number}>"
        if new:
            claim = f"<{ENTITY}P{number}>"
            self.lines += [
                f"{claim} <{WIKIBASE}directClaim> {direct} .",
                f"{claim} <{WIKIBASE}propertyType> <{WIKIBASE}{kind}> .",
                f"{claim} <{LABEL}> {_text(label)} .",
            ]
        return direct

    def store(self) -> Store:
        store = Store()
        store.bulk_load("\n".join(self.lines).encode(), format=RdfFormat.N_TRIPLES)
        return store


def _text(words: str) -> str:
    return f"{json.dumps(words)}@en"


class _Handler(BaseHTTPRequestHandler):
    store: Store
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(urlsplit(self.path).query)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self._answer(self.rfile.read(length).decode())

    def _answer(self, form: str) -> None:
        try:
            (query,) = parse_qs(form)["query"]
            found = self.store.query(query)
            body, status = found.serialize(format=QueryResultsFormat.JSON), 200
        except (KeyError, ValueError, SyntaxError) as error:
            body, status = str(error).encode(), 400
        self.send_response(status)
        self.send_header("Content-Type", JSON if status == 200 else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


def server(store: Store, port: int = 0) -> ThreadingHTTPServer:
    return ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), {"store": store}))


@contextmanager
def serving(store: Store) -> Iterator[str]:
    """The address of an endpoint in a thread of this process, until the block ends."""
    with server(store) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}/sparql"
        finally:
            running.shutdown()
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("triples", type=Path, help="a file of RDF, such as .nt or .ttl")
    parser.add_argument("--port", type=int, default=0, help="default: any that is free")
    options = parser.parse_args()

    store = Store()
    store.bulk_load(path=str(options.triples))
    with server(store, options.port) as running:
        print(f"http://127.0.0.1:{running.server_address[1]}/sparql", flush=True)
        running.serve_forever()


if __name__ == "__main__":
    main()
