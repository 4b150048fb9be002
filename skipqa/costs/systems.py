"""What one question costs, part by part: the dense system and SKIP on the same networks.

Enters: a preset's network shapes and a load (how many tokens, passages, regions). Leaves: the FLOPs
of each part twice, by formula and counted while the modules themselves run on the `meta` device, so
that a 13B decoder can be counted on a laptop; the bytes of the key/value cache and the activation
peak. No weights are read; search in the index is not matrix arithmetic and is not counted.

The dense system gives every visual token and passage to every part; SKIP drops them as the paper
says. Both have the same encoder, decoder and passage encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from skipqa.backbones.networks import bert, llama
from skipqa.costs.flops import Part, peak_activation_bytes
from skipqa.costs.fusion import fusion
from skipqa.errors import UserError
from skipqa.nn import budget, drafter, projector, region_query, saliency, verifier
from skipqa.nn.fusion import FusionConfig

System = Literal["dense", "skip"]
CACHE_BYTES = 2  # a bfloat16 number
K_MEANS_ITERATIONS = 8


@dataclass(frozen=True, slots=True)
class Load:
    """One question, in the paper's letters."""

    V: int
    V_kept: int
    T: int
    K: int
    K_kept: int
    L_c: int
    R: int
    L_a: int
    K_read: int  # passages in the decoder's prompt; 0 if it reads fused visual tokens only
    draft_rate: float  # fraction of questions that the drafter answers

    def __post_init__(self) -> None:
        for kept, of in (("V_kept", "V"), ("K_kept", "K"), ("K_read", "K_kept"), ("R", "V_kept")):
            if not 0 <= getattr(self, kept) <= getattr(self, of):
                raise UserError(f"{kept} must lie between 0 and {of} = {getattr(self, of)}")
        if min(self.V_kept, self.T, self.L_c, self.L_a, self.R) < 1:
            raise UserError("V_kept, T, L_c, R and L_a must be at least 1")
        if not 0 <= self.draft_rate <= 1:
            raise UserError(f"the draft rate must lie between 0 and 1, not {self.draft_rate}")


def changed(load: Load, changes: Mapping[str, Any]) -> Load:
    """The load with some letters changed; K_read and R follow unless they are changed too."""
    K_kept = changes.get("K_kept", load.K_kept)
    V_kept = changes.get("V_kept", load.V_kept)
    follows = {
        "K_read": K_kept if load.K_read == load.K_kept else min(load.K_read, K_kept),
        "R": max(1, min(V_kept // 4, load.R)),
    }
    return replace(load, **{**follows, **changes})


@dataclass(frozen=True, slots=True)
class Architecture:
    """The networks of a preset. `None` where the preset has no such part."""

    vision: Callable[[], Part]
    text: bert.BertConfig
    decoder: llama.LlamaConfig
    saliency: saliency.SaliencyConfig
    budget: budget.DiscreteBudgetConfig | budget.DifficultyBudgetConfig
    region_query: region_query.RegionQueryConfig
    verifier: verifier.VerifierConfig
    fusion: FusionConfig
    projector: projector.ProjectorConfig | None
    drafter: drafter.DrafterConfig | None
    load: Load
    k_means: bool  # regions by k-means on kept tokens; otherwise by a detector, not counted
    visual_prompt: bool = True  # the decoder reads visual tokens
    # The high-resolution pass after `vision`, which is then the low-resolution one for the drafter
    high_res: Callable[[], Part] | None = None
    words: int = 0  # about the image that the drafter reads
    question_encoders: int = 1  # a drafter may have its own
    frame: int = 0  # tokens of the prompt that are neither the question's nor a passage's
    scored: int = 0  # tokens of candidate answers, scored in one pass


def parts(preset: Architecture, load: Load, system: System) -> list[Part]:
    """In the order of the pipeline."""
    skip = system == "skip"
    V, K = (load.V_kept, load.K_kept) if skip else (load.V, load.K)
    prompt = prompt_tokens(preset, load, system)
    found = [preset.vision(), _question(preset, load)]
    if preset.projector is not None:
        found.append(_projector(preset.projector, load))
    if skip and preset.drafter is not None:
        seen = load.V if preset.high_res is None else preset.drafter.visual_tokens
        found.append(_drafter(replace(preset.drafter, visual_tokens=seen), load, preset.words))
    if preset.high_res is not None and K:
        found.append(preset.high_res())
    if skip:
        found += [_budget(preset, load), _saliency(preset, load)]
        if preset.k_means and K:
            found.append(_k_means(preset, load))
    if K:  # otherwise retrieval is off altogether (SKIP-NR)
        found.append(_queries(preset, load.R if skip else 1))
        if skip:
            found.append(_verifier(preset, load))
        found.append(_passages(preset, K, load.L_c))
        found.append(fusion(preset.fusion, V, K, load.L_c, sparse=skip))
    answer = _scoring(preset, prompt) if preset.scored else _generation(preset, prompt, load.L_a)
    return [*found, _prefill(preset, prompt), answer]


def expected_flops(found: list[Part], draft_rate: float) -> float:
    """The mean over questions if the drafter answers a fraction `draft_rate` of them."""
    return sum(part.flops * (1.0 if part.always else 1 - draft_rate) for part in found)


def prompt_tokens(preset: Architecture, load: Load, system: System) -> int:
    V, read = load.V, load.K * (load.K_read > 0)
    if system == "skip":
        V, read = load.V_kept, load.K_read
    return V * preset.visual_prompt + preset.frame + load.T + read * load.L_c


def kv_cache_bytes(config: llama.LlamaConfig, tokens: int) -> int:
    return 2 * config.layers * config.kv_width * tokens * CACHE_BYTES


def decoder_peak_bytes(preset: Architecture, load: Load, system: System) -> int:
    """Activations of the prompt's pass in bfloat16, the largest of any part."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            run = _prefill(preset, prompt_tokens(preset, load, system)).prepare()
        return peak_activation_bytes(run)
    finally:
        torch.set_default_dtype(before)


def _question(preset: Architecture, load: Load) -> Part:
    def prepare() -> Callable[[], object]:
        model = bert.Bert(preset.text)
        ids = torch.zeros(preset.question_encoders, load.T, dtype=torch.long)
        return lambda: model(ids)

    flops = preset.question_encoders * bert.flops(preset.text, load.T)
    return Part("question encoder", flops, prepare, always=True)


def _passages(preset: Architecture, num_passages: int, length: int) -> Part:
    def prepare() -> Callable[[], object]:
        model = bert.Bert(preset.text)
        ids = torch.zeros(num_passages, length, dtype=torch.long)
        return lambda: model(ids)

    flops = num_passages * bert.flops(preset.text, length)
    return Part("passage encoder", flops, prepare)


def _projector(config: projector.ProjectorConfig, load: Load) -> Part:
    def prepare() -> Callable[[], object]:
        model, x = projector.Projector(config), torch.empty(load.V, config.vision_width)
        return lambda: model(x)

    # Before pruning: QVS multiplies tokens with the question and needs them in its width.
    return Part("projector", projector.flops(config, load.V), prepare, always=True)


def _drafter(config: drafter.DrafterConfig, load: Load, words: int) -> Part:
    def prepare() -> Callable[[], object]:
        model = drafter.Drafter(config)
        visual = torch.empty(1, config.visual_tokens, config.visual_width)
        question = torch.empty(1, load.T, config.question_width)
        shown = torch.empty(1, words, config.question_width), torch.empty(1, words)
        return lambda: model(visual, question, words=shown)

    return Part("SKV drafter", drafter.flops(config, load.T, words), prepare, always=True)


def _budget(preset: Architecture, load: Load) -> Part:
    config = preset.budget

    def prepare() -> Callable[[], object]:
        model = budget.build_budget(config)
        visual, question = torch.empty(config.visual_width), torch.empty(config.question_width)
        return lambda: model(visual, question, load.V, load.K)

    return Part("DBC controller", budget.flops(config), prepare)


def _saliency(preset: Architecture, load: Load) -> Part:
    config = preset.saliency

    def prepare() -> Callable[[], object]:
        model = saliency.build_saliency(config)
        visual, question = torch.empty(load.V, config.width), torch.empty(config.width)
        return lambda: model(visual, question)

    return Part("QVS scoring", saliency.flops(config, load.V), prepare)


def _k_means(preset: Architecture, load: Load) -> Part:
    width = preset.saliency.width

    def prepare() -> Callable[[], object]:
        tokens, centres = torch.empty(load.V_kept, width), torch.empty(width, load.R)

        def run() -> None:
            for _ in range(K_MEANS_ITERATIONS):
                tokens @ centres

        return run

    flops = 2 * K_MEANS_ITERATIONS * load.V_kept * load.R * width
    return Part("RCSR regions", flops, prepare)


def _queries(preset: Architecture, regions: int) -> Part:
    config = preset.region_query

    def prepare() -> Callable[[], object]:
        model = region_query.build_region_query(config)
        views = region_query.RegionViews(
            torch.empty(regions, config.vision_width), torch.empty(regions, config.concepts)
        )
        inputs = [views, torch.empty(config.question_width)]
        if config.variant == "B":
            inputs.append(torch.empty(regions, 4))
        return lambda: model(*inputs)

    return Part("RCSR queries", region_query.flops(config, regions), prepare)


def _verifier(preset: Architecture, load: Load) -> Part:
    config = preset.verifier

    def prepare() -> Callable[[], object]:
        model = verifier.Verifier(config)
        question, visual = torch.empty(config.width), torch.empty(config.visual_width)
        passages = torch.empty(load.K, config.width)
        return lambda: model(question, visual, passages)

    return Part("SKV verifier", verifier.flops(config, load.K), prepare)


def _prefill(preset: Architecture, tokens: int) -> Part:
    config = preset.decoder

    def prepare() -> Callable[[], object]:
        x, positions = torch.empty(1, tokens, config.width), torch.arange(tokens)
        model = llama.Llama(config)
        cache = llama.KVCache(config, 1, tokens, dtype=x.dtype, device=x.device)
        return lambda: model.logits(model(x, cache, positions, tokens, from_zero=True)[:, -1])

    return Part("decoder, prompt", llama.flops(config, tokens, tokens), prepare)


def _generation(preset: Architecture, prompt: int, steps: int) -> Part:
    config = preset.decoder

    def prepare() -> Callable[[], object]:
        x = torch.empty(1, 1, config.width)
        model = llama.Llama(config)
        cache = llama.KVCache(config, 1, prompt + steps, dtype=x.dtype, device=x.device)
        places = [torch.arange(1) for _ in range(steps)]  # on meta a position has no value

        def run() -> None:
            for n, place in enumerate(places, 1):
                model.logits(model(x, cache, place, prompt + n, from_zero=False)[:, -1])

        return run

    flops = llama.generation_flops(config, prompt, steps) - llama.flops(config, prompt, prompt)
    return Part("decoder, answer", flops, prepare)


def _scoring(preset: Architecture, prompt: int) -> Part:
    config, new = preset.decoder, preset.scored
    end = prompt + new

    def prepare() -> Callable[[], object]:
        x, places = torch.empty(1, new, config.width), torch.arange(new)
        model = llama.Llama(config)
        cache = llama.KVCache(config, 1, end, dtype=x.dtype, device=x.device)
        return lambda: model.logits(model(x, cache, places, end, from_zero=False))

    flops = llama.flops(config, new, end, logits=new)
    return Part("decoder, answer", flops, prepare)
