"""Cases with the score that the official code gave, kept outside this repository.

Point SKIPQA_SHARED at the folder that holds `scoring-samples/`. Our own vectors, which any
checkout can run, are in `vectors/` beside this file.
"""

from __future__ import annotations

import builtins
import json
import os
from pathlib import Path
from typing import Any

import pytest

from skipqa.tasks import aokvqa, evqa, infoseek, okvqa, viquae
from skipqa.tasks.text import CONTRACTIONS, squad_normalise

SHARED = Path(os.environ.get("SKIPQA_SHARED", ""))
if not SHARED.name:
    pytest.skip("SKIPQA_SHARED names no folder with scoring-samples/", allow_module_level=True)


def samples(name: str, section: str = "cases") -> list[dict[str, Any]]:
    path = SHARED / "scoring-samples" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))[section]


def each(name: str, section: str = "cases") -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", samples(name, section))


def close(value: object) -> object:
    return pytest.approx(value, abs=1e-9)


@each("okvqa")
def test_okvqa(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    assert okvqa.accuracy(inputs["prediction"], inputs["answers"]) == close(expected["accuracy"])


@each("okvqa")
def test_okvqa_compared_forms(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    texts = [inputs["prediction"], *inputs["answers"]]
    tidy = [text.replace("\n", " ").replace("\t", " ").strip() for text in texts]
    final = [okvqa.normalise(text) for text in tidy] if expected["normalization_applied"] else tidy
    assert final == [expected["pred_final"], *expected["answers_final"]]


@each("okvqa", "normalization_cases")
def test_okvqa_normalise(case: dict[str, Any]) -> None:
    text, expected = case["inputs"]["text"], case["expected"]
    assert okvqa.strip_punctuation(text) == expected["after_punctuation"]
    assert okvqa.normalise_words(text) == expected["after_digit_article_only"]
    assert okvqa.normalise(text) == expected["after_both"]


@each("okvqa", "degenerate_cases")
def test_okvqa_records(case: dict[str, Any]) -> None:
    accuracy = okvqa.accuracy_of_records(case["inputs"]["prediction"], case["inputs"]["answers"])
    assert 100 * accuracy == pytest.approx(case["expected"]["accuracy_pct"], abs=1e-6)


def test_contractions() -> None:
    path = SHARED / "scoring-samples" / "contractions.json"
    assert dict(CONTRACTIONS) == json.loads(path.read_text(encoding="utf-8"))


@each("aokvqa")
def test_aokvqa(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    prediction = inputs["prediction"]
    if "multiple_choice" in prediction:
        assert expected["multiple_choice"] == aokvqa.multiple_choice(
            prediction["multiple_choice"], inputs["choices"], inputs["correct_choice_idx"]
        )
    if expected["direct_answer"] is None:
        assert inputs["difficult_direct_answer"] is not False
    else:
        given = prediction.get("direct_answer")  # a missing prediction scores 0
        score = 0.0 if given is None else aokvqa.direct_answer(given, inputs["direct_answers"])
        assert score == close(expected["direct_answer"])


@each("infoseek")
def test_infoseek(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    score = infoseek.score(inputs["prediction"], inputs["question_type"], inputs["answer_eval"])
    assert score == expected["score"]
    if "parsed_prediction" in expected:
        assert infoseek.parse_number(inputs["prediction"]) == expected["parsed_prediction"]
    else:
        assert squad_normalise(inputs["prediction"]) == expected["normalized_prediction"]


@each("infoseek", "error_cases")
def test_infoseek_errors(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    with pytest.raises(getattr(builtins, case["expected"]["error"])):
        infoseek.score(inputs["prediction"], inputs["question_type"], inputs["answer_eval"])


@each("infoseek", "numerical_range_cases")
def test_infoseek_ranges(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    assert infoseek.numerical_score(inputs["pred"], inputs["answer"]) == case["expected"]


@each("infoseek", "harmonic_mean_cases")
def test_infoseek_harmonic_mean(case: dict[str, Any]) -> None:
    assert infoseek.harmonic_mean(*case["inputs"]) == close(case["expected"])


@each("encyclopedic_vqa")
def test_evqa(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    candidate, kind = inputs["candidate"], inputs["question_type"]
    score = evqa.exact_match(candidate, inputs["reference_list"], kind)
    assert score == expected["exact_match"]
    each_alone = [evqa.exact_match(candidate, [ref], kind) for ref in inputs["reference_list"]]
    assert each_alone == expected["per_reference"]
    if "candidate_items" in expected:
        assert evqa.split_items(candidate) == expected["candidate_items"]
    else:
        assert evqa.preprocess(candidate) == expected["candidate_preprocessed"]
        references = [evqa.preprocess(reference) for reference in inputs["reference_list"]]
        assert references == expected["references_preprocessed"]


@each("encyclopedic_vqa", "error_cases")
def test_evqa_errors(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    with pytest.raises(getattr(builtins, expected["error"])) as caught:
        evqa.exact_match(inputs["candidate"], inputs["reference_list"], inputs["question_type"])
    assert str(caught.value) == expected["message"]


@each("encyclopedic_vqa", "bem_wiring_cases")
def test_evqa_bem(case: dict[str, Any]) -> None:
    inputs, calls = case["inputs"], []
    logits_of = dict(
        zip(
            (reference.replace("&&", ",") for reference in inputs["reference_list"]),
            inputs["bem_logits_per_reference"],
            strict=True,
        )
    )

    def bem(candidate: str, reference: str, question: str) -> list[float]:
        calls.append({"candidate": candidate, "reference": reference, "question": question})
        return logits_of[reference]

    score = evqa.score(
        inputs["question"],
        inputs["candidate"],
        inputs["reference_list"],
        inputs["question_type"],
        bem,
    )
    assert score == case["expected"]["score"]
    assert calls == case["expected"]["bem_calls"]


@each("viquae")
def test_viquae(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    prediction, references = inputs["prediction"], inputs["references"]
    assert viquae.exact_match(prediction, references) == expected["exact_match"]
    assert viquae.f1(prediction, references) == close(expected["f1"])
    assert squad_normalise(prediction) == expected["prediction_normalized"]
    assert [viquae.f1(prediction, [ref]) for ref in references] == close(
        expected["f1_per_reference"]
    )


@each("viquae", "error_cases")
def test_viquae_errors(case: dict[str, Any]) -> None:
    error = getattr(builtins, case["expected"]["error"])
    for metric in (viquae.exact_match, viquae.f1):
        with pytest.raises(error):
            metric(case["inputs"]["prediction"], case["inputs"]["references"])


@each("viquae", "retrieval_cases")
def test_viquae_retrieval(case: dict[str, Any]) -> None:
    query, inputs, expected = case["inputs"]["query_id"], case["inputs"], case["expected"]
    found = viquae.retrieval({query: inputs["qrels"]}, {query: inputs["run"]}, list(expected))
    assert found == close(expected)


@each("viquae", "retrieval_edge_cases")
def test_viquae_retrieval_edges(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    if "error" in expected:
        with pytest.raises(getattr(builtins, expected["error"])):
            viquae.retrieval(inputs["qrels"], inputs["run"], **inputs["options"])
    else:
        found = viquae.retrieval(inputs["qrels"], inputs["run"], **inputs["options"])
        assert found == close(expected)


@each("viquae", "relevance_cases")
def test_viquae_relevance(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    original, answers = [inputs["original_answer"]], inputs["answers"]
    found = [i for i, text in enumerate(inputs["passages"]) if viquae.is_relevant(text, original)]
    assert found == expected["original_relevant"]
    either = [*original, *answers]
    found = [i for i, text in enumerate(inputs["passages"]) if viquae.is_relevant(text, either)]
    assert found == expected["relevant"]


@each("aokvqa", "strict_mode_cases")
def test_aokvqa_strict(case: dict[str, Any]) -> None:
    """The samples omit their data set; this one is what their scores imply: even questions
    are right for multiple choice, odd ones difficult, every fourth right as a direct answer."""
    inputs = case["inputs"]
    dataset = [
        {
            "question_id": question_id,
            "choices": ["cab", "train", "delivery", "skateboarder"],
            "correct_choice_idx": number % 2,
            "direct_answers": ["cab"] * (3 if number % 4 == 2 else 0) + ["bus"] * 7,
            "difficult_direct_answer": number % 2 == 1,
        }
        for number, question_id in enumerate(inputs["question_ids"])
    ]
    setting = "multiple_choice" if inputs["multiple_choice"] else "direct_answer"
    for strict, key in ((True, "expected_strict"), (False, "expected_non_strict")):
        if "error" in case[key]:
            with pytest.raises(getattr(builtins, case[key]["error"])):
                aokvqa.setting_score(dataset, inputs["predictions"], setting, strict)
        else:
            score = aokvqa.setting_score(dataset, inputs["predictions"], setting, strict)
            assert score == close(case[key]["value"])
