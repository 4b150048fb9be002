"""Does a change of the code leave every answer as it was?

Records what the pipeline makes of a fixed draw of questions, stage by stage, and compares two such
records. Floats are written as hexadecimal or as the SHA-256 of their bytes: equal means equal bit
for bit. SKIP answers all questions of the draw, every other system and pruner the first few.

    python benchmarks/unchanged.py record --questions okvqa/val.jsonl --images okvqa/val.zip \\
        --limit 150 --every-system 20 --out before.jsonl
    python benchmarks/unchanged.py compare before.jsonl after.jsonl
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from skipqa.errors import UserError
from skipqa.evaluation import systems
from skipqa.evaluation.systems import Variant
from skipqa.pipeline import Answer, load


def variants() -> list[Variant]:
    """SKIP first, then every other system that needs no source, then SKIP with every other
    pruner."""
    others = (name for name in systems.SYSTEMS if name not in ("skip", systems.WITH_SOURCES))
    named = [Variant("skip"), *map(Variant, others)]
    return named + [Variant("skip", pruner) for pruner in systems.PRUNERS if pruner != "qvs"]


def drawn(questions: Path, limit: int) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()]
    return random.Random(0).sample(rows, min(limit, len(rows)))


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def observed(answer: Answer) -> dict[str, Any]:
    """All that is known of a question, in values that compare exactly."""
    state = answer.state
    found: dict[str, Any] = {
        "answer": answer.text,
        "route": answer.route,
        "evidence": [[e.id, e.title, e.text, e.score, e.region] for e in answer.evidence],
        "stages": {s.name: [s.flops, s.kept, s.dropped] for s in answer.trace.stages},
    }
    if "draft" in state:
        candidates = [[text, float(log_prob).hex()] for text, log_prob in state.draft.candidates]
        found["draft"] = [state.draft.answer, state.draft.confidence.hex(), candidates]
    if "kept" in state:
        found["kept"] = [digest(state.kept.positions), digest(state.kept.saliency)]
    if "regions" in state:
        found["regions"] = [
            [r.box, r.members, [[c, s.hex()] for c, s in r.concepts]] for r in state.regions
        ]
    if "retrieved" in state:
        found["retrieved"] = [
            state.retrieved.num_hits,
            state.retrieved.num_unique,
            [[p.row, p.score.hex(), p.region] for p in state.retrieved.passages],
        ]
    if "verified" in state:
        found["verified"] = [[p.row for p in state.verified.passages]]
        found["verified"] += [[score.hex() for score in state.verified.scores]]
    if "fused" in state:
        edges = digest(state.fused.edges.to(torch.uint8))
        found["fused"] = [digest(state.fused.tokens), edges, [m.hex() for m in state.fused.mass]]
    if "prompt" in state:
        found["prompt"] = state.prompt
    return json.loads(json.dumps(found))


def record(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # sums in one order, however busy the machine is
    base = load(index=arguments.index, trained=not arguments.untrained)
    rows = drawn(arguments.questions, arguments.limit)
    with zipfile.ZipFile(arguments.images) as photos, arguments.out.open("w") as file:
        for number, variant in enumerate(variants()):
            try:
                system = systems.build(variant, base)
            except UserError as lacking:  # embeddings, a ViT, a trained drafter
                print(f"{number + 1:3} {variant.name} left out: {lacking}", file=sys.stderr)
                continue
            for row in rows if number == 0 else rows[: arguments.every_system]:
                answer = system.answer(BytesIO(photos.read(row["image"])), row["question"])
                line = {"system": variant.name, "question": row["question_id"], **observed(answer)}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
            print(f"{number + 1:3} {variant.name}", file=sys.stderr)


def lines(path: Path) -> Iterator[tuple[tuple[str, Any], dict[str, Any]]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        yield (row.pop("system"), row.pop("question")), row


def compare(arguments: argparse.Namespace) -> None:
    before, after = dict(lines(arguments.before)), dict(lines(arguments.after))
    differing: Counter[str] = Counter()
    for key in before.keys() | after.keys():
        one, other = before.get(key, {}), after.get(key, {})
        fields = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
        differing.update(fields)
        if fields and sum(differing.values()) < 20:
            print(*key, *(f"{name}: {one.get(name)} -> {other.get(name)}" for name in fields))
    for path in (arguments.before, arguments.after):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path.name)
    asked, of = {key[1] for key in before}, {key[0] for key in before}
    print(f"{len(before)} answers, {len(asked)} questions, {len(of)} systems: ", end="")
    print(f"differing {dict(differing)}" if differing else "all the same, bit for bit")
    sys.exit(bool(differing))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("--questions", type=Path, required=True)
    recording.add_argument("--images", type=Path, required=True)
    recording.add_argument("--limit", type=int, default=150)
    recording.add_argument("--every-system", type=int, default=20)
    recording.add_argument("--index", action="append", help="default: the default library")
    recording.add_argument("--untrained", action="store_true")
    recording.add_argument("--out", type=Path, required=True)
    recording.set_defaults(run=record)
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.set_defaults(run=compare)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
