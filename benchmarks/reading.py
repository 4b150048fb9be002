"""How well the decoder answers from a given fact, and the whole system from a photo.

Twenty questions about ImageNet classes. First the class's gloss from the index is given, in a chat
prompt or after the worked examples of `decode`; the answer is free or has to quote the gloss. Then
`Pipeline.answer` gets the same question with a photo of the class. An answer is correct if one of
its words starts with the expected letters.

    python benchmarks/reading.py --entities FOLDER
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, NamedTuple

from common import imagenet_photos, opened
from rich.progress import Progress
from rich.table import Table

from skipqa.backbones.backbone import Decoding
from skipqa.cli.console import err, out, prepare_process
from skipqa.costs.environment import write_results
from skipqa.language import words_of
from skipqa.pipeline import Pipeline, load
from skipqa.stages.prompts import reading_prompt
from skipqa.stages.readers import EXAMPLES


class Case(NamedTuple):
    shown: str  # a name of the class
    question: str
    expected: str  # a word of a correct answer starts like this; the gloss has it


CASES = (
    Case("espresso", "How is this drink brewed?", "forcing hot water"),
    Case("vizsla", "Which country does this dog come from?", "hungar"),
    Case("Granny Smith", "What does this fruit taste like?", "tart"),
    Case("giant panda", "What does this animal eat?", "bamboo"),
    Case("koala", "What does this animal eat?", "eucalypt"),
    Case("beaver", "What does this animal build?", "dam"),
    Case("barometer", "What does this instrument measure?", "pressure"),
    Case("guacamole", "What is this dish made of?", "avocado"),
    Case("Saint Bernard", "What was this dog used for?", "rescu"),
    Case("toucan", "Where does this bird live?", "america"),
    Case("sundial", "How does this device tell time?", "shadow"),
    Case("abacus", "What is this used for?", "arithm"),
    Case("pretzel", "What shape does this food have?", "knot"),
    Case("stethoscope", "What is this instrument for?", "sound"),
    Case("hourglass", "How does this work?", "sand"),
    Case("Chihuahua", "Where does this dog breed come from?", "mexic"),
    Case("lighter", "What does it do?", "ignit"),
    Case("lemon", "What color is this fruit?", "yellow"),
    Case("malinois", "What color is this dog?", "fawn"),
    Case("platypus", "Where does this animal live?", "austral"),
)

CHAT = """\
<|im_start|>system
You answer questions about a picture briefly, using the facts given.<|im_end|>
<|im_start|>user
{fact}
The picture shows {shown}.
{question}<|im_end|>
<|im_start|>assistant
"""
PROMPTS = ("chat", "worked examples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entities", type=Path, required=True, help="photos.jsonl, photos.zip")
    parser.add_argument("--seed", type=int, default=2026, help="of the photo where a class has two")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()

    prepare_process()
    pipeline = load(trained=False)
    synset_of = {
        name.lower(): concept.synset
        for concept in reversed(pipeline.backbone.concepts.entries)
        for name in concept.names
    }
    photo_of = {photo.synset: photo for photo in imagenet_photos(options.entities, options.seed)}
    given: dict[tuple[str, bool], list[dict[str, Any]]] = {
        (prompt, quoting): [] for prompt in PROMPTS for quoting in (False, True)
    }
    looked_up = []
    with opened(options.entities / "photos.zip") as images, Progress(console=err) as bar:
        task = bar.add_task("reading", total=len(CASES) * (len(given) + 1))
        for case in CASES:
            synset = synset_of[case.shown.lower()]
            fact = gloss(pipeline, synset)
            assert is_right(fact, case), f"nobody can answer {case} from {fact!r}"
            for (prompt, quoting), answers in given.items():
                text = read(pipeline, case, fact, prompt, quoting)
                answers.append({"answer": text, "right": is_right(text, case)})
                bar.advance(task)
            answer = pipeline.answer(images[photo_of[synset].name](), case.question)
            had = any(evidence.id == f"wordnet:{synset}" for evidence in answer.evidence)
            right = is_right(answer.text, case)
            looked_up.append({"answer": answer.text, "right": right, "had_gloss": had})
            bar.advance(task)

    table = Table("given", "free", "quoting")
    rows = []
    for prompt in PROMPTS:
        free, quoted = (count_right(given[prompt, quoting]) for quoting in (False, True))
        rows.append({"prompt": prompt, "free": free, "quoting": quoted})
        table.add_row(f"the gloss, {prompt}", str(free), str(quoted))
    table.add_row("a photo, the whole system", "", str(count_right(looked_up)))
    out.print(table)
    results = {
        "questions": [case._asdict() for case in CASES],
        "seed": options.seed,
        "given_gloss": rows,
        "given_photo": count_right(looked_up),
        "wrong_without_gloss": sum(not a["right"] and not a["had_gloss"] for a in looked_up),
        "answers": {
            f"{prompt}, {'quoting' if quoting else 'free'}": answers
            for (prompt, quoting), answers in given.items()
        }
        | {"photo": looked_up},
    }
    err.print(f"written to {write_results(results, 'reading', options.out)}")


def gloss(pipeline: Pipeline, synset: str) -> str:
    row = pipeline.library.row_of(f"wordnet:{synset}")
    assert row is not None
    return pipeline.library.passage(row).text


def read(pipeline: Pipeline, case: Case, fact: str, prompt: str, quoting: bool) -> str:
    if prompt == "chat":
        text = CHAT.format(fact=fact, shown=case.shown, question=case.question)
    else:
        text = EXAMPLES + reading_prompt([fact], [case.shown], case.question)
    decoding = Decoding(
        pipeline.config.decode.max_new_tokens,
        quote_from=(fact,) if quoting else (),
        avoid=frozenset(words_of(f"{case.question} {case.shown}")),
    )
    return pipeline.backbone.generate(text, decoding).text


def is_right(text: str, case: Case) -> bool:
    return re.search(rf"\b{case.expected}", text.lower()) is not None


def count_right(answers: list[dict[str, Any]]) -> int:
    return sum(answer["right"] for answer in answers)


if __name__ == "__main__":
    main()
