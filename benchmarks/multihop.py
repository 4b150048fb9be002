"""What further rounds of retrieval gain and cost: SKIP-Iter on Pocket-KB's questions of two steps.

Every `multihop` question of a split is answered with one round of retrieval, two, three, as many as
the question seems to need, and by the dense system; two rounds also with the training-free bridge,
and with the right one given. A sample of all other questions says what is paid where one round is
enough. The stages before `hop` are the same for all but the dense system, so they run once. What is
answered is kept in a file, so a stopped run goes on there.

    python benchmarks/multihop.py --pocket-kb FOLDER --answers multihop.jsonl
"""

from __future__ import annotations

import argparse
import io
import json
import random
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from rich.table import Table

from skipqa.backbones.text_encoder import MiniLm
from skipqa.cli.console import err, out, prepare_process
from skipqa.components import load_for
from skipqa.costs.environment import write_results
from skipqa.data.held_out import pocket_kb_split
from skipqa.data.pocket_kb.text import plain
from skipqa.evaluation import systems
from skipqa.evaluation.statistics import mean_interval, paired_bootstrap
from skipqa.files import read_jsonl
from skipqa.pipeline import Pipeline, load
from skipqa.stages.hop import AskAgain, CapitalisedFinder
from skipqa.stages.stage import Parts
from skipqa.state import State
from skipqa.tasks.example import Example
from skipqa.tasks.pocket_kb import POCKET_KB
from skipqa.trace import Trace
from skipqa.types import Bridge

ONE, TWO, THREE, NEEDED = "one round", "two rounds", "three rounds", "as needed"
RULE, GIVEN, DENSE = "two rounds, rule", "two rounds, bridge given", "dense"
ROUNDS = {ONE: 1, TWO: 2, THREE: 3, RULE: 2, GIVEN: 2}
WAYS = (ONE, TWO, THREE, NEEDED, RULE, GIVEN, DENSE)
OTHERS = (ONE, TWO, NEEDED)  # ways of questions that one round is enough for
MULTIHOP, OTHER = "multihop", "others"
BATCH = 32  # texts
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pocket-kb", type=Path, required=True, help="made by `skipqa data`")
    parser.add_argument("--answers", type=Path, required=True, help="JSON Lines; goes on there")
    parser.add_argument("--summarise", action="store_true", help="what is answered, ask nothing")
    parser.add_argument("--held-out", action="store_true", help="of train, to choose on")
    parser.add_argument("--components", type=Path)
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS, metavar="WAY")
    parser.add_argument("--most", type=int, help="questions of two steps; default: all")
    parser.add_argument("--others", type=int, default=200, help="other questions")
    parser.add_argument("--set", action="append", default=[], metavar="STAGE.NAME=VALUE")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    examples = questions(options.pocket_kb, options.held_out)
    chosen = {
        MULTIHOP: [one for one in examples if MULTIHOP in one.subsets],
        OTHER: [one for one in examples if MULTIHOP not in one.subsets],
    }
    weights = {group: len(some) / len(examples) for group, some in chosen.items()}
    asks_again = {group: fraction_marked(some, options) for group, some in chosen.items()}
    for group, most in ((MULTIHOP, options.most), (OTHER, options.others)):
        random.Random(options.seed).shuffle(chosen[group])
        chosen[group] = chosen[group][:most]
    rows = answered(chosen, options)
    found = summary(rows, weights)
    show(found)
    again = ", ".join(f"{100 * part:.1f} % of {group}" for group, part in asks_again.items())
    cost = cost_of_all(found, weights, asks_again)
    out.print(f"as needed asks again about {again}: {cost:.3f} of one round over all questions")
    if not options.held_out:
        results = {
            "seed": options.seed,
            "fraction_multihop": weights[MULTIHOP],
            "asked_again": asks_again,
            "cost_of_asking_again": cost_of_all(found, weights, asks_again),
            **found,
        }
        components = load_for("pocket", options.components).checksums()
        err.print(f"written to {write_results(results, 'multihop', options.out, components)}")


def questions(pocket_kb: Path, held_out: bool) -> list[Example]:
    if not held_out:
        return POCKET_KB.load(pocket_kb, "val")
    train = POCKET_KB.load(pocket_kb, "train")
    return [one for one in train if pocket_kb_split(one.record) == "held-out"]


def fraction_marked(examples: Sequence[Example], options: argparse.Namespace) -> float:
    """How many of these questions have words for a bridge: the question alone decides it."""
    pointer, texts = load_for("pocket", options.components).bridge, MiniLm()
    if pointer is None or not examples:
        return 0.0
    different = sorted({one.question for one in examples}, key=len)
    marked: dict[str, bool] = {}
    for start in range(0, len(different), BATCH):
        encoded = texts.encode(different[start : start + BATCH])
        for text, *found in zip(
            different[start : start + BATCH], encoded.embeddings, encoded.states, strict=True
        ):
            marked[text] = pointer.find_nested(*found) is not None
    return sum(marked[one.question] for one in examples) / len(examples)


def cost_of_all(
    found: Mapping[str, Any], weights: Mapping[str, float], asks_again: Mapping[str, float]
) -> float:
    """Of as needed, in costs of one round: whatever is asked again costs what a question of two
    steps costs, all others nothing more."""
    more = found[MULTIHOP][NEEDED][f"cost of {ONE}"] - 1
    return 1 + more * sum(weights[group] * asks_again[group] for group in weights)


def answered(chosen: Mapping[str, Sequence[Example]], options: argparse.Namespace) -> list[Row]:
    """A row per question and way, of what was asked here."""
    from skipqa.config import read_settings

    path: Path = options.answers
    rows = read_jsonl(path) if path.exists() else []
    done = {(row["way"], row["id"]) for row in rows}
    todo = [
        (group, one, ways)
        for group, some in chosen.items()
        for one in some
        if (
            ways := [
                way
                for way in (options.ways if group == MULTIHOP else OTHERS)
                if way in options.ways and (way, one.id) not in done
            ]
        )
    ]
    if todo and not options.summarise:
        torch.set_num_threads(1)
        skip = load(
            index=("default", options.pocket_kb / "index"),
            components=options.components,
            overrides=read_settings(options.set),
        )
        with (
            zipfile.ZipFile(options.pocket_kb / "photos.zip") as photos,
            path.open("a", encoding="utf-8") as file,
        ):
            for group, one, ways in track(todo, "asking", console=err):
                image = photos.read(one.image)
                for row in asked(skip, image, one, ways):
                    rows.append({"group": group, **row})
                    file.write(json.dumps(rows[-1]) + "\n")
                file.flush()
    ids = {one.id for some in chosen.values() for one in some}
    return [row for row in rows if row["id"] in ids and row["way"] in options.ways]


def asked(skip: Pipeline, image: bytes, example: Example, ways: Sequence[str]) -> list[Row]:
    rows = []
    if DENSE in ways:
        answer = systems.build(DENSE, skip).answer(io.BytesIO(image), example.question)
        rows.append(_row(DENSE, example, answer.text, answer.trace.flops))
    rest = [way for way in ways if way != DENSE]
    if not rest:
        return rows
    before = Trace()
    state = skip.run(State(io.BytesIO(image), example.question), stop="draft", trace=before)
    if state.draft.accepted:
        return rows + [_row(way, example, state.draft.answer, before.flops) for way in rest]
    state = skip.run(state, start="budget", stop="fuse", trace=before)
    known: dict[str, tuple[State, Trace]] = {}
    for way in sorted(rest, key=(ONE, NEEDED, *WAYS).index):
        known[way] = final, after = _same(way, state, known) or _finished(skip, way, state, example)
        hops = final.hops if "hops" in final else ()
        told = [passage.passage.id for passage in final.verified.passages]
        rows.append(
            {
                **_row(way, example, final.answer.text, before.flops + after.flops),
                "rounds": 1 + len(hops),
                "bridge": hops[0].bridge.name if hops else None,
                "right": bool(hops) and plain(hops[0].bridge.name) == example.record.get("bridge"),
                "hop1": bool(example.gold and example.gold[0].intersection(told)),
                "hop2": bool(example.gold and example.gold[-1].intersection(told)),
            }
        )
    return rows


def _finished(skip: Pipeline, way: str, state: State, example: Example) -> tuple[State, Trace]:
    number = ROUNDS.get(way, state.budget.rounds)
    entering = state.add(budget=replace(state.budget, rounds=number))
    after = Trace()
    return asking(skip, way, example).run(entering, start="hop", trace=after), after


def _same(
    way: str, fused: State, known: Mapping[str, tuple[State, Trace]]
) -> tuple[State, Trace] | None:
    """What another way has done already: as needed may be one round, and two rounds may be all
    that was needed."""
    if way == NEEDED and fused.budget.rounds == 1:
        return known.get(ONE)
    if way == TWO and fused.budget.rounds > 1 and NEEDED in known:
        final, _ = known[NEEDED]
        if "hops" in final and len(final.hops) == 1 and final.question.nested is None:
            return known[NEEDED]
    return None


def asking(skip: Pipeline, way: str, example: Example) -> Pipeline:
    """Its `hop`; with H fixed a round is asked whatever the question says."""
    if way in (NEEDED, ONE):
        return skip
    system = skip.with_config(budget={"rounds": ROUNDS[way]})
    finders: dict[str, Callable[[], Any]] = {
        RULE: CapitalisedFinder,
        GIVEN: lambda: GivenFinder(example),
    }
    if way not in finders:
        return system

    def build(parts: Parts) -> AskAgain:
        return AskAgain(parts, finders[way]())

    return system.with_stages(hop=build)


class GivenFinder:
    """The right bridge, as if the best passage had named it."""

    def __init__(self, example: Example) -> None:
        self.name = str(example.record["bridge"]).title()

    def __call__(self, state: State, places: Sequence[int]) -> tuple[Bridge | None, int]:
        return (Bridge(self.name, places[0], 1.0) if places else None), 0


def _row(way: str, example: Example, answer: str, flops: int) -> Row:
    score = POCKET_KB.score(example, POCKET_KB.prediction(example, answer))
    return {"way": way, "id": example.id, "answer": answer, "score": score, "flops": flops}


def summary(rows: Sequence[Row], weights: Mapping[str, float]) -> dict[str, Any]:
    by_group: dict[str, dict[str, dict[Any, Row]]] = {}
    for row in rows:
        by_group.setdefault(row["group"], {}).setdefault(row["way"], {})[row["id"]] = row
    found: dict[str, Any] = {
        group: {way: _of_way(way, ways) for way in WAYS if way in ways}
        for group, ways in by_group.items()
    }
    if OTHER in found and MULTIHOP in found:
        of_mix = {
            way: sum(weights[group] * found[group][way]["flops"] for group in weights)
            for way in OTHERS
            if all(way in found[group] for group in weights)
        }
        found["mix"] = {way: flops / of_mix[ONE] for way, flops in of_mix.items()}
    return found


def _of_way(way: str, ways: Mapping[str, Mapping[Any, Row]]) -> dict[str, Any]:
    rows = list(ways[way].values())
    measured: dict[str, Any] = {
        "questions": len(rows),
        "accuracy": asdict(mean_interval([row["score"] for row in rows])),
        "flops": sum(row["flops"] for row in rows) / len(rows),
    }
    for name in ("rounds", "right", "hop1", "hop2"):
        values = [row[name] for row in rows if name in row]
        if values:
            measured[name] = sum(values) / len(values)
    for other in (ONE, DENSE):
        if other in ways and other != way:
            both = [id for id in ways[way] if id in ways[other]]
            measured[f"more than {other}"] = asdict(
                paired_bootstrap(
                    [ways[way][id]["score"] for id in both],
                    [ways[other][id]["score"] for id in both],
                )
            )
            costs = (sum(ways[w][id]["flops"] for id in both) for w in (way, other))
            measured[f"cost of {other}"] = next(costs) / next(costs)
    return measured


def show(found: Mapping[str, Any]) -> None:
    for group in (MULTIHOP, OTHER):
        if group not in found:
            continue
        table = Table(group, "n", "accuracy", f"more than {ONE}", "cost", "hop 2 found", "bridge")
        for way, one in found[group].items():
            accuracy, more = one["accuracy"], one.get(f"more than {ONE}")
            table.add_row(
                way,
                str(one["questions"]),
                f"{100 * accuracy['mean']:.1f} ({100 * accuracy['low']:.1f} to "
                f"{100 * accuracy['high']:.1f})",
                ""
                if more is None
                else f"{100 * more['difference']:+.1f} "
                f"({100 * more['low']:+.1f} to {100 * more['high']:+.1f})",
                f"{one.get(f'cost of {ONE}', 1.0):.2f}",
                f"{100 * one['hop2']:.0f} %" if "hop2" in one else "",
                f"{100 * one['right']:.0f} %" if "right" in one else "",
            )
        out.print(table)
    for way, ratio in found.get("mix", {}).items():
        out.print(f"mean cost of {way} over all questions: {ratio:.3f} of one round")


if __name__ == "__main__":
    main()
