"""Aggregates over a data set: official names, rounding, ids; an oracle and a shuffled guess."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from skipqa.errors import UserError
from skipqa.tasks import aokvqa, evqa, infoseek, okvqa, viquae
from skipqa.tasks.scores import Pairing

WORDS = ["dog", "cat", "horse", "cow"]  # chance is one in four
NUM = 2000


def annotation(number: int, answer: str, kind: str = "one") -> dict[str, Any]:
    answers = [{"answer_id": i, "answer": answer} for i in range(1, 11)]
    answers[-1]["answer"] = "something else"
    return {
        "question_id": number,
        "question_type": kind,
        "answer_type": "other",
        "answers": answers,
    }


def okvqa_overall(truth: list[str], guesses: list[str]) -> float:
    rows = [annotation(number, answer) for number, answer in enumerate(truth)]
    results = [{"question_id": i, "answer": guess} for i, guess in enumerate(guesses)]
    return okvqa.evaluate(results, rows).scores["overall"]


def aokvqa_direct(truth: list[str], guesses: list[str]) -> float:
    return aokvqa_scores(truth, guesses)["direct_answer"]


def aokvqa_choice(truth: list[str], guesses: list[str]) -> float:
    return aokvqa_scores(truth, guesses)["multiple_choice"]


def aokvqa_scores(truth: list[str], guesses: list[str]) -> Any:
    dataset = [
        {
            "question_id": str(number),
            "choices": WORDS,
            "correct_choice_idx": WORDS.index(answer),
            "direct_answers": [answer] * 10,
            "difficult_direct_answer": False,
        }
        for number, answer in enumerate(truth)
    ]
    both = {
        str(i): {"direct_answer": guess, "multiple_choice": guess}
        for i, guess in enumerate(guesses)
    }
    return aokvqa.evaluate(dataset, both).scores


def infoseek_final(truth: list[str], guesses: list[str]) -> float:
    ids = [f"infoseek_val_{number:08d}" for number in range(len(truth))]
    references = [
        {
            "data_id": data_id,
            "data_split": f"val_unseen_{'entity' if number % 2 else 'question'}",
            "answer_eval": [answer],
        }
        for number, (data_id, answer) in enumerate(zip(ids, truth, strict=True))
    ]
    predictions = [
        {"data_id": data_id, "prediction": guess}
        for data_id, guess in zip(ids, guesses, strict=True)
    ]
    types = dict.fromkeys(ids, "String")
    return infoseek.evaluate(predictions, references, types).scores["final_score"]


def evqa_accuracy(truth: list[str], guesses: list[str]) -> float:
    rows = [
        {"question": "?", "answer": f"{answer}|a {answer}", "question_type": "automatic"}
        for answer in truth
    ]
    return evqa.evaluate(rows, guesses).scores["exact_match"]


def viquae_match(truth: list[str], guesses: list[str]) -> float:
    return viquae.evaluate(guesses, [[answer] for answer in truth]).scores["exact_match"]


BENCHMARKS = [
    okvqa_overall,
    aokvqa_direct,
    aokvqa_choice,
    infoseek_final,
    evqa_accuracy,
    viquae_match,
]
Benchmark = Callable[[list[str], list[str]], float]


@pytest.mark.parametrize("score", BENCHMARKS)
def test_an_oracle_scores_100(score: Benchmark) -> None:
    truth = [WORDS[number % 4] for number in range(NUM)]
    assert score(truth, truth) == 100.0


@pytest.mark.parametrize("score", BENCHMARKS)
def test_shuffled_predictions_score_near_chance(score: Benchmark) -> None:
    truth = [WORDS[number % 4] for number in range(NUM)]
    shuffled = random.Random(2026).sample(truth, NUM)
    assert score(truth, shuffled) == pytest.approx(25.0, abs=4.0)  # four standard errors


@pytest.mark.parametrize("score", BENCHMARKS)
def test_wrong_predictions_score_0(score: Benchmark) -> None:
    truth = [WORDS[number % 4] for number in range(8)]
    assert score(truth, ["zebra"] * 8) == 0.0


def test_okvqa_reports_per_type_and_rounds_as_python_2() -> None:
    rows = [annotation(i, "dog", "one" if i < 32 else "two") for i in range(35)]
    results = [{"question_id": i, "answer": "dog" if i in (0, 32) else "x"} for i in range(35)]
    scores = okvqa.evaluate(results, rows).scores
    assert scores["perQuestionType"] == {"one": 3.13, "two": 33.33}  # 3.125 goes up
    assert scores["perAnswerType"] == {"other": scores["overall"]}
    assert scores["overall"] == 5.71


def test_okvqa_needs_the_same_ids() -> None:
    rows = [annotation(1, "dog"), annotation(2, "dog")]
    with pytest.raises(AssertionError, match="1 missing") as caught:
        okvqa.evaluate([{"question_id": 1, "answer": "dog"}], rows)
    assert isinstance(caught.value, UserError)
    everything = [{"question_id": i, "answer": "dog"} for i in (1, 2, 3)]
    with pytest.raises(AssertionError, match=r"1 unknown \(first: 3\)"):
        okvqa.evaluate(everything, rows)
    as_text = [{"question_id": str(i), "answer": "dog"} for i in (1, 2)]
    with pytest.raises(AssertionError, match="'1'"):
        okvqa.evaluate(as_text, rows)


def test_okvqa_last_of_repeated_answers_counts_once() -> None:
    rows = [annotation(1, "dog"), annotation(2, "dog")]
    results = [{"question_id": i, "answer": a} for i, a in ((1, "x"), (1, "dog"), (2, "x"))]
    report = okvqa.evaluate(results, rows)
    assert report.scores["overall"] == 50.0
    assert report.pairing.duplicate == (1,)
    assert "last answer" in report.notes[0]


def test_aokvqa_reports_a_setting_only_when_predicted() -> None:
    dataset = [
        {
            "question_id": name,
            "choices": ["dog", "cat"],
            "correct_choice_idx": 0,
            "direct_answers": ["dog", "cat", "cat"],
            "difficult_direct_answer": name == "hard",
        }
        for name in ("easy", "hard", "lost")
    ]
    report = aokvqa.evaluate(dataset, {"easy": {"direct_answer": "dog"}, "odd": {}})
    assert report.scores == {"direct_answer": pytest.approx(100 / 3 / 2)}
    assert report.pairing.unknown == ("odd",)
    assert any("'lost'" in note and "score 0" in note for note in report.notes)


def test_infoseek_counts_predictions() -> None:
    references = [
        {"data_id": "q", "data_split": "val_unseen_question", "answer_eval": ["dog"]},
        {"data_id": "e", "data_split": "val_unseen_entity", "answer_eval": [{"range": [1, 2]}]},
        {"data_id": "t", "data_split": "anything", "answer_eval": ["1999"]},
        {"data_id": "unanswered", "data_split": "val_unseen_entity", "answer_eval": ["x"]},
    ]
    types = {"q": "String", "e": "NUMERICAL", "t": "Time", "unanswered": "String"}
    given = [("q", "dog"), ("q", "cat"), ("q", "cow"), ("e", "1.5"), ("t", "2000"), ("?", "x")]
    predictions = [{"data_id": i, "prediction": p} for i, p in given]
    report = infoseek.evaluate(predictions, references, types)
    assert report.scores == {
        "final_score": 40.0,  # of 33.33 and 50: the rounded scores enter
        "unseen_question_score": {
            "score": 33.33,
            "score_time": 0.0,
            "score_num": 0.0,
            "score_string": 33.33,
        },
        "unseen_entity_score": {
            "score": 50.0,
            "score_time": 0.0,
            "score_num": 100.0,
            "score_string": 0.0,
        },
    }
    pairing = report.pairing
    assert (pairing.missing, pairing.duplicate) == (("unanswered",), ("q",))
    assert pairing.unknown == ("?",)
    assert len(report.notes) == 3


def test_infoseek_without_predictions_is_0() -> None:
    scores = infoseek.evaluate([], [], {}).scores
    assert scores["final_score"] == 0.0
    assert scores["unseen_entity_score"]["score"] == 0.0


def test_infoseek_names_the_prediction_that_the_official_code_chokes_on() -> None:
    reference = {"data_id": "q", "data_split": "x", "answer_eval": [{"range": [1, 2]}]}
    with pytest.raises(ValueError, match="q cannot be scored"):
        infoseek.evaluate(
            [{"data_id": "q", "prediction": "-.1.2"}], [reference], {"q": "numerical"}
        )


def test_evqa_groups_by_type_and_names_bad_rows() -> None:
    rows = [
        {"question": "?", "answer": "dog", "question_type": "2_hop"},
        {"question": "?", "answer": "red&&blue", "question_type": "multi_answer"},
    ]
    scores = evqa.evaluate(rows, ["dog", "green"]).scores
    assert scores["exact_match"] == 50.0
    assert scores["perQuestionType"] == {"2_hop": 100.0, "multi_answer": 0.0}
    with pytest.raises(UserError, match="row 1 cannot be scored: Unknown question type"):
        evqa.evaluate([rows[0], rows[1] | {"question_type": "list"}], ["a", "b"])
    with pytest.raises(AssertionError, match="1 missing"):
        evqa.evaluate(rows, ["dog"])


def test_evqa_asks_bem_only_without_an_exact_match() -> None:
    calls: list[tuple[str, str, str]] = []

    def bem(candidate: str, reference: str, question: str) -> list[list[float]]:
        calls.append((candidate, reference, question))
        return [[0.0, 0.0]] if reference == "canine" else [[1.0, 0.9]]

    assert evqa.score("What?", "hound", ["Hound."], "automatic", bem) == 1.0
    assert calls == []
    assert evqa.score("What?", "hound", ["canine", "cat"], "automatic", bem) == 1.0  # 0.5 is enough
    assert evqa.score("What?", "a&&b", ["x && y"], "multi_answer", bem) == 0.0
    assert calls == [
        ("hound", "canine", "What?"),
        ("hound", "cat", "What?"),
        ("a&&b", "x , y", "What?"),
    ]
    rows = [{"question": "What?", "answer": "canine|cat", "question_type": "automatic"}]
    assert evqa.evaluate(rows, ["hound"], bem).scores["accuracy"] == 100.0


def test_viquae_refuses_unknown_metrics_and_no_queries() -> None:
    with pytest.raises(UserError, match="ndcg"):
        viquae.retrieval({"q": {}}, {"q": {}}, ["ndcg@5"])
    with pytest.raises(UserError, match="no queries"):
        viquae.retrieval({}, {})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: okvqa.evaluate([], []), "no questions"),
        (lambda: evqa.evaluate([], []), "no questions"),
        (lambda: viquae.evaluate([], []), "no questions"),
        (lambda: aokvqa.setting_score([], {}, "direct_answer"), "no question counts"),
    ],
)
def test_nothing_to_score(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


def test_pairing_takes_mappings_for_their_keys() -> None:
    pairing = Pairing.of({"a": {}, "b": {}}, {"b": 7, "c": 8})
    assert (pairing.missing, pairing.unknown, pairing.duplicate) == (("c",), ("a",), ())
