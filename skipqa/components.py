"""Trained components, read from a folder: each file that is there replaces a training-free stage.

Enters: a folder of safetensors files named after the components, each with its own config (so
variant A or B is a property of the file) and the preset it was trained for. Leaves: modules,
ready for inference; the paths of the deltas to published networks, where there are any; and the
settings that were chosen together with them. A component that is not there is None, and its stage
stays training-free.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from skipqa.assets import sha256_of
from skipqa.config import merged
from skipqa.errors import UserError
from skipqa.files import write_text
from skipqa.nn import checkpoint
from skipqa.nn.bridge import BridgeConfig, BridgePointer
from skipqa.nn.budget import (
    BudgetController,
    DifficultyBudgetConfig,
    DiscreteBudgetConfig,
    build_budget,
)
from skipqa.nn.cell_tagger import CellTagger, CellTaggerConfig
from skipqa.nn.concept_prior import ConceptPriorConfig, ConceptPriorHead
from skipqa.nn.drafter import Drafter, DrafterConfig
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.fusion_reader import FusionReader, FusionReaderConfig
from skipqa.nn.grounding import Grounding, GroundingConfig
from skipqa.nn.keep_head import KeepHead, KeepHeadConfig
from skipqa.nn.projector import Projector, ProjectorConfig
from skipqa.nn.reading_choice import ReadingChoice, ReadingChoiceConfig
from skipqa.nn.region_query import (
    DenseRegionQuery,
    RegionQueryConfig,
    SparseRegionQuery,
    build_region_query,
)
from skipqa.nn.saliency import Saliency, SaliencyConfig, build_saliency
from skipqa.nn.tagger import Tagger, TaggerConfig
from skipqa.nn.text_gate import TextGateConfig, TextGateHeads
from skipqa.nn.verifier import Verifier, VerifierConfig
from skipqa.types import Widths


@dataclass(frozen=True, slots=True)
class Components:
    drafter: Drafter | None = None
    budget: BudgetController | None = None
    reading_choice: ReadingChoice | None = None  # per question, see `decode.passages`
    grounding: Grounding | None = None  # QVS over all tokens together
    saliency: Saliency | None = None  # QVS of each token by itself, where there is no grounding
    region_query: SparseRegionQuery | DenseRegionQuery | None = None
    concept_prior: ConceptPriorHead | None = None
    verifier: Verifier | None = None  # of passages as the text encoder embeds them
    pair_verifier: Verifier | None = None  # of (question, passage) pairs, see `pair_encoder`
    fusion: BipartiteFusion | None = None  # in the text encoder's space
    fusion_reader: FusionReader | None = None  # into the decoder, see `decode.passages`
    bridge: BridgePointer | None = None
    keep_head: KeepHead | None = None  # of a baseline: no stage of SKIP uses it
    projector: Projector | None = None
    tagger: Tagger | None = None
    cell_tagger: CellTagger | None = None  # of single tokens, by some of the tagger's names
    text_gate: TextGateHeads | None = None  # when text in the image is read
    adapter: Path | None = None  # the folder of the decoder's LoRA
    # Deltas: what fine-tuning added to the published weights
    vision: Path | None = None  # of the pocket vision encoder
    question: Path | None = None  # of the drafter's question encoder
    reader: Path | None = None  # of the pocket decoder
    dense_reader: Path | None = None  # of the decoder of a baseline, in place of `reader`
    sparse_query: Path | None = None  # of the text encoder that writes sparse queries
    pair_encoder: Path | None = None  # of the text encoder that `pair_verifier` reads
    settings: Mapping[str, Any] = field(default_factory=dict)  # chosen with them on held-out data
    folder: Path | None = None  # where they were read from
    base: Path | None = None  # and those of the preset that this one is based on

    @property
    def folders(self) -> list[Path]:
        """The base first: what comes later replaces it."""
        return [folder for folder in (self.base, self.folder) if folder is not None]

    def checksums(self) -> dict[str, str]:
        """Of every file, by its name."""
        found = {
            path.stem: path for folder in self.folders for path in folder.glob("*.safetensors")
        }
        return {name: sha256_of(path) for name, path in sorted(found.items())}


TRAINING_FREE = Components()
ADAPTER = "adapter_model.safetensors"  # PEFT's name

_BUILDERS: dict[str, Any] = {
    "drafter": (DrafterConfig, Drafter),
    "budget": (DiscreteBudgetConfig, build_budget),
    "reading_choice": (ReadingChoiceConfig, ReadingChoice),
    "grounding": (GroundingConfig, Grounding),
    "saliency": (SaliencyConfig, build_saliency),
    "region_query": (RegionQueryConfig, build_region_query),
    "concept_prior": (ConceptPriorConfig, ConceptPriorHead),
    "verifier": (VerifierConfig, Verifier),
    "pair_verifier": (VerifierConfig, Verifier),
    "fusion": (FusionConfig, BipartiteFusion),
    "fusion_reader": (FusionReaderConfig, FusionReader),
    "bridge": (BridgeConfig, BridgePointer),
    "keep_head": (KeepHeadConfig, KeepHead),
    "projector": (ProjectorConfig, Projector),
    "tagger": (TaggerConfig, Tagger),
    "cell_tagger": (CellTaggerConfig, CellTagger),
    "text_gate": (TextGateConfig, TextGateHeads),
}
# A preset with the same encoders as another begins with what is bundled for that one, less what
# belongs to the decoder: its own deltas, and settings that were chosen with it
BASED_ON = {"desk": "pocket"}
OF_THE_DECODER = (
    "reader",
    "dense_reader",
    "projector",
    "fusion_reader",
    "reading_choice",
    "adapter",
)
SETTINGS_OF_THE_DECODER = ("decode", "confidence")
# Learned with what single tokens show, from their evidence or their features
OF_TOKENS = (
    *("grounding", "saliency", "keep_head", "region_query"),
    *("verifier", "pair_verifier", "fusion", "fusion_reader"),
)
# Nor is any of these true of another vision encoder
OF_THE_ENCODER = (
    *OF_TOKENS,
    *("pair_encoder", "cell_tagger", "projector", "budget", "reading_choice"),
)
DELTAS = ("vision", "question", "reader", "dense_reader", "sparse_query", "pair_encoder")
SETTINGS = "settings.toml"
NAMES = tuple(_BUILDERS)

# Which of the backbone's widths a number in a component's config has to be
_FITS: dict[str, dict[str, str]] = {
    "drafter": {"visual_tokens": "low_res", "visual_width": "vision", "question_width": "text"},
    "budget": {"visual_width": "text", "question_width": "text"},
    "reading_choice": {"visual_width": "text", "question_width": "text"},
    "grounding": {"vision_width": "vision", "text_width": "text"},
    "saliency": {"width": "text"},
    "region_query": {"vision_width": "vision", "question_width": "text"},
    "concept_prior": {"width": "text"},
    "verifier": {"width": "text", "visual_width": "text"},
    "pair_verifier": {"width": "text", "visual_width": "text"},
    "fusion": {"width": "text", "passage_width": "text"},
    "fusion_reader": {"vision_width": "vision", "text_width": "text", "width": "decoder"},
    "bridge": {"width": "text"},
    "keep_head": {"width": "text"},
    "projector": {"vision_width": "vision", "width": "decoder"},
    "tagger": {"width": "vision", "text_width": "text"},
    "cell_tagger": {"width": "vision"},
    "text_gate": {"text_width": "text"},
}


def save(components: Components, folder: Path, *, preset: str) -> None:
    for name in NAMES:
        if (module := getattr(components, name)) is not None:
            checkpoint.save(module, folder / f"{name}.safetensors", preset=preset)


def load(folder: Path, *, preset: str) -> Components:
    """Every component in `folder`; another preset's is refused."""
    if not folder.is_dir():
        raise UserError(f"no folder of components at {folder}")
    files = {name: folder / f"{name}.safetensors" for name in NAMES}
    modules: dict[str, Any] = {
        name: _load(name, path, preset) for name, path in files.items() if path.is_file()
    }
    added: dict[str, Any] = {name: _delta(folder, name, preset) for name in DELTAS}
    added["adapter"] = folder if (folder / ADAPTER).is_file() else None
    if not modules and not any(added.values()):
        known = ", ".join(f"{name}.safetensors" for name in (*NAMES, *DELTAS))
        raise UserError(f"{folder} holds none of {known}")
    drafter = modules.get("drafter")
    if drafter is not None and drafter.config.words and "tagger" not in modules:
        raise UserError(
            f"{files['drafter']} reads words: tagger.safetensors has to be in the same folder"
        )
    cell_tagger, tagger = modules.get("cell_tagger"), modules.get("tagger")
    if cell_tagger is not None and not (tagger and cell_tagger.config.within(tagger.config)):
        raise UserError(
            f"{files['cell_tagger']} has names that tagger.safetensors in the same folder lacks"
        )
    if ("pair_verifier" in modules) != (added["pair_encoder"] is not None):
        raise UserError(
            f"{folder}: pair_verifier.safetensors and pair_encoder.safetensors go together"
        )
    return Components(**modules, **added, settings=read_settings(folder / SETTINGS), folder=folder)


def load_for(preset: str, folder: Path | None = None) -> Components:
    """What is in `folder`, else what is bundled with the preset, on top of the preset's base."""
    folder = folder or bundled(preset)
    own = TRAINING_FREE if folder is None else load(folder, preset=preset)
    if preset not in BASED_ON:
        return own
    base = load_for(BASED_ON[preset])
    changed: dict[str, Any] = {**dict.fromkeys(OF_THE_DECODER), "base": base.folder}
    changed |= {f.name: value for f in fields(own) if (value := getattr(own, f.name)) is not None}
    return replace(base, **changed | {"settings": settings_for(preset, folder)})


def settings_for(preset: str, folder: Path | None = None) -> Mapping[str, Any]:
    """Those that come with the components of `load_for`."""
    folder = folder or bundled(preset)
    own = {} if folder is None else read_settings(folder / SETTINGS)
    if preset not in BASED_ON:
        return own
    base = settings_for(BASED_ON[preset]).items()
    return merged({k: v for k, v in base if k not in SETTINGS_OF_THE_DECODER}, own)


def _delta(folder: Path, name: str, preset: str) -> Path | None:
    path = folder / f"{name}.safetensors"
    if not path.is_file():
        return None
    checkpoint.check(path, component=name, preset=preset)
    return path


def read_settings(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}") from None


def write_settings(path: Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Whole or not at all, so that a kill leaves settings that can be read."""
    lines = [
        "# Chosen on held-out training questions, together with the components next to this file"
    ]
    for group, values in settings.items():
        lines += [f"[{group}]", *(f"{name} = {_toml(value)}" for name, value in values.items()), ""]
    write_text(path, "\n".join(lines).rstrip() + "\n")


def change_settings(path: Path, **settings: Mapping[str, Any]) -> None:
    """Only those given; the others in the file stay as they are."""
    write_settings(path, merged(read_settings(path), settings))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)


def bundled(preset: str) -> Path | None:
    """The folder that comes with the package, where something was trained for the preset."""
    folder = Path(__file__).parent / "checkpoints" / preset
    return folder if folder.is_dir() else None


def check_widths(components: Components, widths: Widths, *, preset: str) -> None:
    """Components of this preset can still be of another backbone's size: say so, and where."""
    for name, fits in _FITS.items():
        if (module := getattr(components, name)) is None:
            continue
        if isinstance(module, Projector) and module.config.reads == "fused":
            fits = fits | {"vision_width": "text"}
        if isinstance(module, DenseRegionQuery):  # an index stores the text encoder's embeddings
            fits = fits | {"retrieval_width": "text"}
        for number, width in fits.items():
            has, needed = getattr(module.config, number), getattr(widths, width)
            if has != needed:
                raise UserError(
                    f"{name}.safetensors was trained for {number} {has}, "
                    f"the backbone of preset '{preset}' has {needed}"
                )


def _load(name: str, path: Path, preset: str) -> nn.Module:
    kind, build = _BUILDERS[name]
    if name == "budget" and checkpoint.read_header(path).component == "DifficultyBudget":
        kind = DifficultyBudgetConfig
    module: nn.Module = build(checkpoint.read_config(path, kind))
    checkpoint.load(module, path, preset=preset)
    return module.eval().requires_grad_(False)
