"""What must hold for any input: bounds, order does not matter, stable forms."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from skipqa.tasks import aokvqa, evqa, infoseek, okvqa, viquae
from skipqa.tasks.text import CONTRACTIONS, squad_normalise

texts = st.text(max_size=40) | st.text("ab1 .,-'&?\n", max_size=40)
words = st.text(string.ascii_letters + string.digits + " ", max_size=40)
answers = st.lists(st.sampled_from(["dog", "Dog", "dogs", "2", "two", "the dog", ""]), min_size=1)
finite = st.floats(-1e6, 1e6)


@given(texts, st.lists(texts, min_size=1, max_size=12))
def test_okvqa_accuracy_is_a_fraction(prediction: str, people: list[str]) -> None:
    assert 0.0 <= okvqa.accuracy(prediction, people) <= 1.0


@given(st.data(), answers)
def test_okvqa_order_of_people_does_not_matter(data: st.DataObject, people: list[str]) -> None:
    shuffled = data.draw(st.permutations(people))
    prediction = data.draw(st.sampled_from(people))
    assert abs(okvqa.accuracy(prediction, people) - okvqa.accuracy(prediction, shuffled)) < 1e-12


@given(st.lists(st.just("dog"), min_size=4, max_size=12))
def test_okvqa_agreeing_with_everyone_is_full(people: list[str]) -> None:
    assert okvqa.accuracy("dog", people) == 1.0


@given(words)
def test_okvqa_normalise_is_idempotent_on_words(text: str) -> None:
    """With punctuation it need not be: the 32-period limit alone breaks it."""
    once = okvqa.normalise(text)
    assert okvqa.normalise(once) == once


@given(texts)
def test_okvqa_normalise_keeps_no_article_and_no_stray_space(text: str) -> None:
    found = okvqa.normalise(text)
    assert found == " ".join(found.split())
    assert not okvqa.ARTICLES & set(found.split())


@given(texts)
def test_squad_normalise_is_idempotent(text: str) -> None:
    once = squad_normalise(text)
    assert squad_normalise(once) == once


@given(texts)
def test_evqa_preprocess_is_idempotent(text: str) -> None:
    once = evqa.preprocess(text)
    assert evqa.preprocess(once) == once


def test_contractions_settle_after_one_step() -> None:
    assert len(CONTRACTIONS) == 120
    assert all(CONTRACTIONS.get(result, result) == result for result in CONTRACTIONS.values())


@given(texts, st.lists(texts, max_size=10))
def test_aokvqa_direct_answer_counts_thirds(prediction: str, people: list[str]) -> None:
    score = aokvqa.direct_answer(prediction, people)
    assert score == min(1.0, people.count(prediction) / 3)


@given(finite, finite, finite, finite)
def test_infoseek_range_inside_is_right(a: float, b: float, c: float, d: float) -> None:
    low, first, second, high = sorted((a, b, c, d))
    assert infoseek.numerical_score([first, second], [low, high]) == 1.0
    assert infoseek.numerical_score(first, [low, high]) == 1.0


@given(st.integers(-(10**9), 10**9))
def test_infoseek_reads_whole_numbers(number: int) -> None:
    assert infoseek.parse_number(str(number)) == number
    assert infoseek.parse_number(f"about {number:,} m") == number


@given(st.text("0123456789.,-+eE abc", max_size=20))
def test_infoseek_parses_or_raises_value_error(text: str) -> None:
    try:
        number = infoseek.parse_number(text)
    except ValueError:
        return
    if isinstance(number, list):
        assert number[0] <= number[1]


@given(texts, st.lists(texts, min_size=1, max_size=4))
def test_strings_score_whole_points_in_any_alias_order(text: str, aliases: list[str]) -> None:
    score = infoseek.score(text, "String", aliases)
    assert score in (0.0, 1.0)
    assert score == infoseek.score(text, "Time", aliases[::-1])
    assert score == viquae.exact_match(text, aliases)


@given(st.sampled_from(evqa.QUESTION_TYPES), st.lists(words, min_size=1, max_size=3))
def test_evqa_gives_the_reference_full_marks(kind: str, references: list[str]) -> None:
    usable = [r for r in references if evqa.preprocess(r) and " and " not in r]
    if usable:
        assert evqa.exact_match(usable[0], usable, kind) == 1.0


@given(texts, st.lists(texts, min_size=1, max_size=4))
def test_viquae_f1_bounds(text: str, references: list[str]) -> None:
    f1 = viquae.f1(text, references)
    assert 0.0 <= f1 <= 1.0
    assert f1 == viquae.f1(text, references[::-1])
    if viquae.exact_match(text, references) and squad_normalise(text):
        assert f1 == 1.0


@given(
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 2)),
    st.permutations(list("abcdefgh")),
    st.integers(0, 8),
)
def test_retrieval_metrics_agree_with_each_other(
    grades: dict[str, int], ranking: list[str], found: int
) -> None:
    run = {passage: -float(rank) for rank, passage in enumerate(ranking[:found])}
    scores = viquae.retrieval({"q": grades}, {"q": run})
    assert all(0.0 <= value <= 1.0 for value in scores.values())
    assert (scores["mrr@100"] == 1.0) == (scores["precision@1"] == 1.0)
    assert (scores["hit_rate@20"] == 1.0) == (scores["precision@20"] > 0)
