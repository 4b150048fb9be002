"""What questions are about, read from all data sets; what may not be trained on is left out."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_training import write_lines

from skipqa.data.held_out import is_held_out, is_id_held_out
from skipqa.training.retrieval import about
from skipqa.training.retrieval.about import FVQA, OKVQA, OPEN, SCENES


def photo(number: int) -> str:
    return f"{number:012}.webp"


def write_pocket_kb(folder: Path) -> None:
    def row(number: int, category: str, relation: str, question: str) -> dict[str, str]:
        named = {"entity": f"{category}:{number}", "name": f"{category.title()} {number}"}
        return {**named, "category": category, "relation": relation, "question": question}

    rows = [row(i, "dog", "name", "What breed is this dog?") for i in range(40)]
    rows += [row(i, "scene", "presence", "Can you see a bus here?") for i in range(40)]
    rows += [row(0, "country", "name", "Which flag is this?")]
    rows += [row(1, "dog", "life", "How old does the dog on the left get?")]  # a crowded picture
    write_lines(folder / "train.jsonl", rows)
    unseen = [{"entity": "dog:7", "names": ["Dog 7"], "passages": []}]
    (folder / "unseen.json").write_text(json.dumps(unseen))
    (folder / "held_out.json").write_text(json.dumps({"coco": [photo(3)], "entities": []}))


def test_pocket_kb_in_many_wordings(tmp_path: Path) -> None:
    write_pocket_kb(tmp_path)
    found = list(about.from_pocket_kb(tmp_path, reworded=2, seed=1))
    assert found == list(about.from_pocket_kb(tmp_path, reworded=2, seed=1))
    as_trained = [one for one in found if not one.held_out_wording]
    assert len(as_trained) == 3 * (39 + 40 + 1 + 1)
    assert "dog 7" not in {one.name for one in found}  # unseen
    assert "flag of country 0" in {one.name for one in found}
    crowded = [one for one in found if "dog on the left" in one.question.lower()]
    assert {one.name for one in crowded} == {"dog 1"}
    reworded = [one for one in found if one.held_out_wording]
    assert reworded
    assert all(one.held_out for one in reworded)
    for one in found:
        assert (one.source == SCENES) == (not one.name)
        if one.name.startswith("dog"):
            assert one.held_out == is_id_held_out(one.name.replace(" ", ":"))


def test_peoples_questions(tmp_path: Path) -> None:
    write_pocket_kb(tmp_path / "kb")
    data = tmp_path / "data"
    rows = [
        {"question_id": i, "image": photo(i), "question": f"Where do these live, {i}?"}
        for i in range(40)
    ]
    write_lines(data / "okvqa/train.jsonl", rows)
    objects = [{"question_id": i, "span": "these", "object": "a Bear "} for i in range(20)]
    write_lines(data / "okvqa/train_objects.jsonl", objects)
    types = [
        {"question_id": i, "type": "lookup" if i < 30 else "other" if i < 35 else "ocr"}
        for i in range(40)
    ]
    write_lines(data / "okvqa/train_types.jsonl", types)
    facts = [
        {"image": photo(i), "question": "Which object can fly?", "answer": "Kite.", "from": where}
        for i, where in enumerate(("image", "kb", "image", "image"))
    ]
    write_lines(data / "fvqa/train.jsonl", facts)
    write_lines(data / "coco/labels.jsonl", [{"labels": ["kite", "bear"]}, {"labels": ["bear"]}])
    found = about.read(tmp_path / "kb", data, reworded=1, seed=0)
    of = {source: [one for one in found if one.source == source] for source in about.SOURCES}
    assert len(of[OKVQA]) == 19  # a photo of Pocket-KB's val is left out
    assert {one.name for one in of[OKVQA]} == {"bear"}
    assert [one.held_out for one in of[OKVQA]] == [
        is_held_out(photo(i)) for i in range(20) if i != 3
    ]
    assert len(of[OPEN]) == 5
    assert [(one.name, one.question) for one in of[FVQA]] == [("kite", "Which object can fly?")] * 2
    assert about.common_names(data) == ["bear", "kite"]
    assert about.common_names(None) == []
    assert about.read(None, tmp_path / "nothing here", reworded=1, seed=0) == []
