"""The model card of a trained reader, written from its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from skipqa.backbones.weights.gguf_decoder import PublishedDecoder
from skipqa.training.reader.settings import FOCUS, PART, ReaderSettings

CARD = "README.md"


def written(
    preset: str,
    published: PublishedDecoder,
    settings: ReaderSettings,
    seed: int,
    metrics: Mapping[str, Any],
) -> str:
    lora, train, found = settings.lora, settings.train, metrics
    columns = ("before", "unread", "found", "with the drafter")
    rows = [
        f"| {name} | "
        + " | ".join(
            f"{100 * value:.1f}"
            for value in (
                found["before"]["found"][name],
                found["shipped"]["unread"][name],
                found["shipped"]["found"][name],
                found["joint"][name]["accuracy"],
            )
        )
        + " |"
        for name in found["shipped"]["found"]
    ]
    prompts = [found["prompts"].get(phase, 0) for phase in (PART, FOCUS)]
    where = "q, k, v, o and the feed-forward matrices" if lora.mlp else "q, k, v and o"
    return "\n".join(
        [
            f"# Model card: the reader of `{preset}`",
            "",
            f"`{PART}.safetensors` is what training added to {published.asset.name} (sha256",
            f"`{published.asset.sha256}`):",
            f"factors of rank {lora.rank} for {where}, in 8 bits. They are merged into these",
            "weights when they are converted; other weights are refused. `settings.toml` has what",
            f"was chosen with them. Use: `skipqa ask --preset {preset} --components` this folder.",
            "",
            f"Trained by `skipqa train reader --preset {preset}`, seed {seed}, LoRA at scale",
            f"{lora.scale:g} and dropout {lora.dropout:g}, batch {train.batch}, {prompts[0]:,}",
            f"prompts at lr {train.lr:g}, then {prompts[1]:,} of knowledge questions at",
            f"{train.focus_lr:g}, each time that one was seen counted. COCO's classes of a",
            "training photo come from a tagger that was not trained on it, other words from the",
            "tagger as it ships, which was: these are better than those of new photos. Photos that",
            "are held out, or of val, are new to it.",
            "",
            "Soft accuracy in per cent, of prompts as stage I writes them, not through the whole",
            "pipeline. `before` is the published decoder with what retrieval finds, `unread` this",
            "one without passages, `found` with what retrieval finds.",
            "",
            f"| questions | {' | '.join(columns)} |",
            f"| --- | {' | '.join('---' for _ in columns)} |",
            *rows,
            "",
            f"Chosen on `okvqa/held-out`: {found['weights']}; a draft is enough above",
            f"{found['fast_path']['threshold']:.3f}.",
            "",
            f"Data and terms are those of the pocket checkpoint; the decoder is "
            f"{published.asset.licence}.",
            "",
        ]
    )
