"""Every analytic model against what torch counts while the network runs, within 2 %."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from skipqa.backbones.networks import bert, llama
from skipqa.costs.flops import count_flops, peak_activation_bytes
from skipqa.nn import (
    budget,
    cell_tagger,
    drafter,
    keep_head,
    projector,
    region_query,
    saliency,
    tagger,
    verifier,
)

Case = tuple[int, Callable[[], object]]


def saliency_case(variant: str) -> Case:
    config = saliency.SaliencyConfig(96, variant, hidden=32)  # type: ignore[arg-type]
    model = saliency.build_saliency(config)
    v, q = torch.empty(50, 96), torch.empty(96)
    return saliency.flops(config, 50), lambda: model(v, q)


def keep_head_case() -> Case:
    config = keep_head.KeepHeadConfig(96, hidden=32)
    model, v = keep_head.KeepHead(config), torch.empty(50, 96)
    return keep_head.flops(config, 50), lambda: model(v)


def region_query_case(variant: str) -> Case:
    config = region_query.RegionQueryConfig(96, 33, 64, variant)  # type: ignore[arg-type]
    model = region_query.build_region_query(config)
    views = region_query.RegionViews(torch.zeros(8, 96), torch.zeros(8, 33))
    inputs = [views, torch.empty(64)] + [torch.empty(8, 4)] * (variant == "B")
    return region_query.flops(config, 8), lambda: model(*inputs)


def budget_case(
    config: budget.DiscreteBudgetConfig | budget.DifficultyBudgetConfig,
) -> Case:
    model = budget.build_budget(config)
    v, q = torch.zeros(96), torch.zeros(64)
    return budget.flops(config), lambda: model(v, q, 576, 16)


def verifier_case() -> Case:
    config = verifier.VerifierConfig(64, 96)
    model = verifier.Verifier(config)
    inputs = torch.empty(64), torch.empty(96), torch.empty(16, 64)
    return verifier.flops(config, 16), lambda: model(*inputs)


def drafter_case() -> Case:
    config = drafter.DrafterConfig(49, 96, 64, answers=("a",) * 300, width=64, layers=3)
    model = drafter.Drafter(config)
    v, q = torch.empty(1, 49, 96), torch.empty(1, 12, 64)
    return drafter.flops(config, 12), lambda: model(v, q)


def drafter_with_words_case() -> Case:
    config = drafter.DrafterConfig(
        49, 96, 64, answers=("a",) * 300, width=64, layers=3, words=True, named_answers=True
    )
    model = drafter.Drafter(config)
    v, q = torch.empty(1, 49, 96), torch.empty(1, 12, 64)
    words = torch.empty(1, 10, 64), torch.empty(1, 10)
    return drafter.flops(config, 12, words=10), lambda: model(v, q, None, words)


def tagger_case() -> Case:
    config = tagger.TaggerConfig(("a",) * 70, ("",) * 70, width=96, hidden=64)
    model, v = tagger.Tagger(config).eval(), torch.empty(1, 50, 96)
    return tagger.flops(config), lambda: model(v)


def cell_tagger_case() -> Case:
    names = ("a",) * 70
    config = cell_tagger.CellTaggerConfig(names, names, width=96, hidden=64)
    model = cell_tagger.CellTagger(config).eval()
    coarse, fine = torch.empty(1, 96, 4, 4), torch.empty(1, 96, 8, 8)
    return cell_tagger.flops(config, 64), lambda: model(coarse, fine)


def projector_case() -> Case:
    config = projector.ProjectorConfig(96, 128)
    model, v = projector.Projector(config), torch.empty(50, 96)
    return projector.flops(config, 50), lambda: model(v)


def decoder_case() -> Case:
    config = llama.LlamaConfig(300, 64, 3, 4, 2, 128)
    x, positions = torch.empty(1, 40, 64), torch.arange(40)
    model, cache = llama.Llama(config), llama.KVCache(config, 1, 40, device=x.device)
    return llama.flops(config, 40, 40), lambda: model.logits(
        model(x, cache, positions, 40, from_zero=True)[:, -1]
    )


def encoder_case() -> Case:
    config = bert.BertConfig(layers=2)
    model, ids = bert.Bert(config), torch.zeros(1, 30, dtype=torch.long)
    return bert.flops(config, 30), lambda: model(ids)


CASES: dict[str, Callable[[], Case]] = {
    "QVS A": lambda: saliency_case("A"),
    "QVS B": lambda: saliency_case("B"),
    "keep head": keep_head_case,
    "RCSR A": lambda: region_query_case("A"),
    "RCSR B": lambda: region_query_case("B"),
    "DBC A": lambda: budget_case(budget.DiscreteBudgetConfig(96, 64)),
    "DBC B": lambda: budget_case(budget.DifficultyBudgetConfig(96, 64)),
    "SKV verifier": verifier_case,
    "SKV drafter": drafter_case,
    "SKV drafter with words": drafter_with_words_case,
    "tagger": tagger_case,
    "cell tagger": cell_tagger_case,
    "projector": projector_case,
    "decoder": decoder_case,
    "text encoder": encoder_case,
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", CASES)
def test_analytic_model_agrees_with_the_counter(name: str, device: str) -> None:
    with torch.device(device):
        predicted, run = CASES[name]()
    assert predicted == pytest.approx(count_flops(run), rel=0.02)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_peak_is_the_largest_sum_of_living_tensors(device: str) -> None:
    x, w = torch.zeros(10, 100, device=device), torch.zeros(100, 100, device=device)

    def run() -> torch.Tensor:
        a = x @ w  # 4,000 bytes
        b = a.relu()  # 8,000
        c = b @ w  # 12,000: the peak
        del a, b
        return c.view(-1)[:5] + 1

    assert peak_activation_bytes(run) == 12_000
