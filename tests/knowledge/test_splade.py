"""SPLADE through a tiny random BERT of the real class and the real vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from skipqa import assets
from skipqa.errors import UserError
from skipqa.knowledge.index import Index, build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.splade import SpladeEncoder
from skipqa.types import Passage


@pytest.fixture(scope="module")
def checkpoint(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers", reason="SPLADE is an extra")
    import torch

    folder = tmp_path_factory.mktemp("splade")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30_522, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=128, initializer_range=0.3,
    )  # fmt: skip
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    tokenizer = assets.fetch(assets.MINILM) / "tokenizer.json"
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer), pad_token="[PAD]", model_max_length=128
    ).save_pretrained(folder)
    return folder


def test_weights_are_the_formula_and_batches_change_nothing(checkpoint: Path) -> None:
    import torch

    encoder = SpladeEncoder(str(checkpoint), max_tokens=64, batch=2)
    texts = ["a dog", "espresso is strong black coffee brewed under pressure", "Paris"]
    rows = encoder.encode_passages([Passage(str(i), "", t, "s") for i, t in enumerate(texts)])
    tokenizer, model = encoder._loaded
    for i, text in enumerate(texts):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            logits = model(**inputs).logits[0]
        expected = torch.log1p(torch.relu(logits)).amax(dim=0).numpy()
        dense = np.zeros(30_522, np.float32)
        dense[rows[i].terms] = rows[i].weights
        assert np.allclose(dense, np.where(expected > encoder.floor, expected, 0), atol=1e-4)
        query = encoder.encode_query(text)
        assert query.terms.tolist() == rows[i].terms.tolist()


def test_an_index_opens_its_splade_again(checkpoint: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "a dog barks"}\n{"text": "coffee is brewed"}\n')
    build(tmp_path / "i", [JsonLines(corpus)], SpladeEncoder(str(checkpoint), max_tokens=64))
    index = Index.open(tmp_path / "i")
    for row in range(2):
        query = index.encoder.encode_query(index.passage(row).text)
        assert index.search([query], 1)[0][0].row == row
        assert index.vector(row).terms.tolist() == index.stored_vector(row).terms.tolist()


def test_no_checkpoint_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no masked-language-model checkpoint"):
        SpladeEncoder(str(tmp_path / "none")).encode_query("x")
