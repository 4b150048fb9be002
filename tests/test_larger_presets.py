"""The full path of `submission-7b` and `ablation-13b`, on tiny models of the same classes."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny_models import LLAMA, VISION, write_ablation, write_submission
from typer.testing import CliRunner

from skipqa import components
from skipqa.backbones.backbone import Decoding
from skipqa.backbones.presets.clip_vicuna import ClipVicuna
from skipqa.backbones.presets.evaclip_vicuna import EvaClipVicuna
from skipqa.backbones.presets.llava import Llava
from skipqa.cli.main import app
from skipqa.components import Components, check_widths
from skipqa.config import PRESETS
from skipqa.errors import MissingExtra, UserError
from skipqa.evaluation import systems
from skipqa.evaluation.systems import Variant
from skipqa.knowledge.index.build import build
from skipqa.knowledge.sources.tables import JsonLines
from skipqa.knowledge.sparse_encoder import LexicalEncoder
from skipqa.nn.budget import DifficultyBudgetConfig, build_budget
from skipqa.nn.drafter import Drafter, DrafterConfig
from skipqa.nn.fusion import BipartiteFusion, FusionConfig
from skipqa.nn.projector import Projector, ProjectorConfig
from skipqa.nn.region_query import RegionQueryConfig, build_region_query
from skipqa.nn.saliency import SaliencyConfig, build_saliency
from skipqa.nn.verifier import Verifier, VerifierConfig
from skipqa.pipeline import Answer, Pipeline, load

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("home")

QUESTION = "How is this drink brewed?"
LARGER = ("submission-7b", "ablation-13b")
BACKBONES: dict[str, type[ClipVicuna]] = {"submission-7b": EvaClipVicuna, "ablation-13b": Llava}
# Small images, short completions, and no segmenter, which is the real one and slow
TINY: dict[str, Any] = {
    "encode": {"scales": [56]},
    "budget": {"tokens": 6},
    "regions": {"proposals": "clusters"},
    "decode": {"max_new_tokens": 8},
}


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        "submission-7b": write_submission(tmp_path_factory.mktemp("submission")),
        "ablation-13b": write_ablation(tmp_path_factory.mktemp("ablation")),
    }


@pytest.fixture(scope="session")
def pipelines(home: Path, weights: dict[str, Path]) -> dict[str, Pipeline]:
    return {name: load(name, weights=weights[name], overrides=TINY) for name in LARGER}


def without_times(answer: Answer) -> dict[str, Any]:
    found = answer.as_dict()
    del found["latency_ms"]
    for stage in found["stages"]:
        del stage["ms"]
    return found


def trained(name: str, backbone: ClipVicuna, reads: str = "features") -> Components:
    """One of each, untrained, of the preset's variant and the backbone's widths."""
    torch.manual_seed(2026)
    variant, widths = PRESETS[name].variant, backbone.widths
    d = widths.text
    drafter = DrafterConfig(
        widths.tokens, widths.vision, d, ("yes", "no"), width=32, layers=1, ffn=64
    )
    into = widths.vision if reads == "features" else d
    return Components(
        drafter=Drafter(drafter).eval(),
        budget=build_budget(DifficultyBudgetConfig(d, d)) if variant == "B" else None,
        saliency=build_saliency(SaliencyConfig(d, variant)),
        region_query=build_region_query(
            RegionQueryConfig(widths.vision, len(backbone.concepts), d)
        ),
        verifier=Verifier(VerifierConfig(d, d)),
        fusion=BipartiteFusion(FusionConfig(d, d, 12, variant)),
        projector=Projector(ProjectorConfig(into, widths.decoder, reads)),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", LARGER)
def test_a_question_takes_the_full_path_and_again_the_same(
    name: str, pipelines: dict[str, Pipeline], photo: Path
) -> None:
    answer = pipelines[name].answer(photo, QUESTION, fast_path=False)
    found = without_times(answer)
    assert found["route"] == "full"
    assert found["tokens"] == {"total": 16, "kept": 6}
    assert all(record.why for record in answer.trace.stages)
    assert "MEDIUM" in answer.trace["decode"].why
    assert QUESTION in answer.state.prompt
    again = pipelines[name].answer(photo, QUESTION, fast_path=False)
    assert without_times(again) == found


def test_without_a_projector_the_trace_says_that_the_decoder_sees_nothing(
    pipelines: dict[str, Pipeline], photo: Path
) -> None:
    blind = pipelines["submission-7b"].answer(photo, QUESTION, fast_path=False)
    assert "no projector, so words only" in blind.trace["decode"].why
    assert "<image>" not in blind.state.prompt
    seeing = pipelines["ablation-13b"].answer(photo, QUESTION, fast_path=False)
    assert "6 visual tokens (features)" in seeing.trace["decode"].why
    assert "<image>" in seeing.state.prompt


def test_verified_passages_stand_in_the_prompt(pipelines: dict[str, Pipeline], photo: Path) -> None:
    answer = pipelines["ablation-13b"].answer(photo, QUESTION, fast_path=False)
    read = answer.trace["decode"].kept
    assert read
    for number in range(1, read + 1):
        assert f"[{number}] " in answer.state.prompt
    retrieved = len(answer.state.retrieved.passages)
    assert len(answer.evidence) <= -(-retrieved * 6 // 10), "rho_r = 0.60"


@pytest.mark.parametrize("reads", ["features", "fused"])
@pytest.mark.parametrize("name", LARGER)
def test_components_in_a_folder(
    name: str,
    reads: str,
    pipelines: dict[str, Pipeline],
    weights: dict[str, Path],
    photo: Path,
    tmp_path: Path,
) -> None:
    backbone = pipelines[name].backbone
    assert isinstance(backbone, ClipVicuna)
    components.save(trained(name, backbone, reads), tmp_path, preset=name)
    system = load(name, weights=weights[name], components=tmp_path, overrides=TINY)
    answer = system.answer(photo, QUESTION, fast_path=False)
    decoded, kept = answer.trace["decode"], answer.trace["prune"].kept
    assert f"{kept} visual tokens ({reads})" in decoded.why
    if reads == "fused" and name == "ablation-13b":
        assert decoded.kept == 0, "algorithm 1: the decoder reads fused tokens alone"
    if name == "ablation-13b":
        assert answer.state.budget.difficulty is not None


@pytest.mark.parametrize(("bias", "level"), [(-4.0, "EASY"), (0.0, "MEDIUM"), (4.0, "HARD")])
def test_the_prompt_follows_the_difficulty(
    bias: float, level: str, pipelines: dict[str, Pipeline], photo: Path
) -> None:
    base = pipelines["ablation-13b"]
    d = base.backbone.widths.text
    controller = build_budget(DifficultyBudgetConfig(d, d))
    with torch.no_grad():
        controller.difficulty.weight.zero_()
        controller.difficulty.bias.fill_(bias)
    system = systems.build("skip-no-draft", base.with_components(budget=controller))
    answer = system.answer(photo, QUESTION)
    assert f"<difficulty>{level}</difficulty>" in answer.state.prompt
    assert (answer.evidence == ()) == (level == "EASY")


def test_dense_queries_of_variant_b(
    pipelines: dict[str, Pipeline], weights: dict[str, Path], photo: Path, tmp_path: Path
) -> None:
    """Regions ask by embedding, three passages each, in an index that stores embeddings."""
    base = pipelines["ablation-13b"]
    rows = [{"id": f"{i}", "title": "", "text": f"passage {i} about coffee"} for i in range(30)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    build(
        tmp_path / "index",
        [JsonLines(corpus)],
        LexicalEncoder.default(),
        embed=lambda texts: base.backbone.encode_texts(texts).embeddings.numpy(),
    )
    d = base.backbone.widths.text
    torch.manual_seed(2026)
    sizes = base.backbone.widths.vision, len(base.backbone.concepts), d
    phi = build_region_query(RegionQueryConfig(*sizes, "B", retrieval_width=d))
    components.save(Components(region_query=phi), tmp_path / "phi", preset="ablation-13b")
    system = load(
        "ablation-13b",
        index=tmp_path / "index",
        weights=weights["ablation-13b"],
        components=tmp_path / "phi",
        overrides=TINY,
    )
    answer = system.answer(photo, QUESTION, fast_path=False)
    assert answer.state.retrieved.num_hits == 3 * len(answer.state.regions)
    assert answer.trace["retrieve"].flops > 0
    assert answer.evidence
    wrong = build_region_query(RegionQueryConfig(*sizes, "B", retrieval_width=768))
    with pytest.raises(UserError, match=r"region_query.* retrieval_width 768"):
        check_widths(Components(region_query=wrong), base.backbone.widths, preset="ablation-13b")


def test_the_dense_system_leaves_nothing_out(pipelines: dict[str, Pipeline], photo: Path) -> None:
    """The preset's own fractions, of tokens, edges and verified passages, are all overruled."""
    base = pipelines["ablation-13b"]
    preset = dataclasses.replace(base.config, budget=PRESETS["ablation-13b"].budget)
    base = Pipeline(dataclasses.replace(base.parts, config=preset))
    assert base.answer(photo, QUESTION, fast_path=False).trace["prune"].kept == 7  # ceil(0.4 16)
    trace = systems.build("dense", base).answer(photo, QUESTION).trace
    for stage in ("prune", "verify", "fuse", "decode"):
        assert trace[stage].kept
        assert trace[stage].dropped == 0
    fewer = systems.build(Variant("skip", "downsample", 0.6), base).answer(photo, QUESTION).trace
    assert fewer["encode"].kept == fewer["prune"].kept == 9  # 3 x 3


def test_components_of_another_size_are_refused(
    pipelines: dict[str, Pipeline], weights: dict[str, Path], tmp_path: Path
) -> None:
    wrong = Components(projector=Projector(ProjectorConfig(1_408, 4_096)))
    components.save(wrong, tmp_path / "real", preset="submission-7b")
    with pytest.raises(UserError, match=r"projector\.safetensors .* vision_width 1408.* has 88"):
        load("submission-7b", weights=weights["submission-7b"], components=tmp_path / "real")
    wrong = Components(saliency=build_saliency(SaliencyConfig(4_096)))
    components.save(wrong, tmp_path / "pocket", preset="pocket")
    with pytest.raises(UserError, match=r"saliency.* width 4096, .* preset 'pocket' has 384"):
        load("pocket", components=tmp_path / "pocket")
    with pytest.raises(UserError, match="trained for preset 'pocket' and cannot serve"):
        load("ablation-13b", weights=weights["ablation-13b"], components=tmp_path / "pocket")


def write_adapter(folder: Path, base: str, width: int = LLAMA["hidden_size"], rank: int = 4) -> Any:
    torch.manual_seed(3)
    kv = LLAMA["num_key_value_heads"] * width // LLAMA["num_attention_heads"]
    state = {}
    for layer in range(LLAMA["num_hidden_layers"]):
        for x, rows in (("q", width), ("k", kv), ("v", kv), ("o", width)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{x}_proj.lora_"
            state[f"{name}A.weight"] = torch.randn(rank, width)
            state[f"{name}B.weight"] = torch.randn(rows, rank)
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "adapter_model.safetensors")
    config = {"r": rank, "lora_alpha": 2 * rank, "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return state


def test_an_adapter_is_merged(
    pipelines: dict[str, Pipeline], weights: dict[str, Path], tmp_path: Path
) -> None:
    """W + (alpha / r) B A, as PEFT defines it, on each of q, k, v and o."""
    name = "submission-7b"
    state = write_adapter(tmp_path, "lmsys/vicuna-7b-v1.5")
    adapted = load(name, weights=weights[name], components=tmp_path, overrides=TINY).backbone
    plain = pipelines[name].backbone
    assert isinstance(adapted, ClipVicuna)
    assert isinstance(plain, ClipVicuna)
    for number, (new, old) in enumerate(
        zip(adapted.decoder.layers, plain.decoder.layers, strict=True)
    ):
        at = f"base_model.model.model.layers.{number}.self_attn."
        change = {
            x: 2 * state[f"{at}{x}_proj.lora_B.weight"] @ state[f"{at}{x}_proj.lora_A.weight"]
            for x in "qkvo"
        }
        joined = torch.cat([change[x] for x in "qkv"])
        torch.testing.assert_close(new.qkv.weight, old.qkv.weight + joined)
        torch.testing.assert_close(new.out.weight, old.out.weight + change["o"])


def test_an_adapter_of_something_else_is_refused(weights: dict[str, Path], tmp_path: Path) -> None:
    name = "submission-7b"
    write_adapter(tmp_path / "a", "lmsys/vicuna-13b-v1.5")
    write_adapter(tmp_path / "b", "lmsys/vicuna-7b-v1.5", width=64)
    for folder, complaint in (
        ("a", "trained on vicuna-13b-v1.5"),
        ("b", r"\(32, 64\) in k_proj.*\(24, 48\)"),
    ):
        system = load(name, weights=weights[name], components=tmp_path / folder, overrides=TINY)
        with pytest.raises(UserError, match=complaint):
            system.backbone.generate("Hello", Decoding(1))
    with pytest.raises(UserError, match="takes no projector and no adapter"):
        load("pocket", components=tmp_path / "a")


@pytest.mark.parametrize("name", LARGER)
def test_missing_weights_are_one_line_with_sizes_and_commands(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKIPQA_WEIGHTS", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    for folder in (None, tmp_path):
        with pytest.raises(UserError) as error:
            load(name, weights=folder)
        message = str(error.value)
        assert "\n" not in message
        for repository in BACKBONES[name].repositories:
            assert f"{repository.id} ({repository.gigabytes:g} GB)" in message
            assert f"hf download {repository.id}" in message


def test_a_download_that_stopped_half_way_is_missing(
    weights: dict[str, Path], tmp_path: Path
) -> None:
    for repository in EvaClipVicuna.repositories:
        (tmp_path / repository.folder).symlink_to(weights["submission-7b"] / repository.folder)
    vicuna = tmp_path / EvaClipVicuna.repositories[0].folder
    vicuna.unlink()
    vicuna.mkdir()
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (vicuna / "model.safetensors.index.json").write_text(json.dumps(index))
    (vicuna / "model-1-of-2.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"lmsys/vicuna-7b-v1\.5") as error:
        load("submission-7b", weights=tmp_path)
    assert "timm/" not in str(error.value), "what is there is not asked for again"


def test_other_or_damaged_weights_are_one_line(weights: dict[str, Path], tmp_path: Path) -> None:
    vicuna, eva = EvaClipVicuna.repositories
    (tmp_path / vicuna.folder).symlink_to(weights["submission-7b"] / vicuna.folder)
    (tmp_path / eva.folder).mkdir()
    file = tmp_path / eva.folder / "open_clip_model.safetensors"
    save_file({"something.else": torch.zeros(1)}, file)
    with pytest.raises(UserError, match=r"is not timm/eva.*: it has no visual\.trunk"):
        load("submission-7b", weights=tmp_path)
    file.write_bytes(b"no safetensors")
    with pytest.raises(UserError, match=r"is damaged .* download it again"):
        load("submission-7b", weights=tmp_path)


def test_weights_are_found_in_the_cache(
    weights: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKIPQA_WEIGHTS", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for repository in Llava.repositories:
        home = tmp_path / f"models--{repository.id.replace('/', '--')}"
        (home / "refs").mkdir(parents=True)
        (home / "refs" / "main").write_text("0" * 40)
        (home / "snapshots").mkdir()
        place = weights["ablation-13b"] / repository.folder
        (home / "snapshots" / ("0" * 40)).symlink_to(place)
    assert load("ablation-13b").backbone.widths.decoder == LLAMA["hidden_size"]


def test_weights_are_found_by_the_environment(
    weights: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIPQA_WEIGHTS", str(weights["ablation-13b"]))
    widths = load("ablation-13b").backbone.widths
    assert (widths.vision, widths.decoder) == (VISION["hidden_size"], LLAMA["hidden_size"])


def test_without_the_extra_its_name_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"preset submission-7b .*skipqa\[hub\]"):
        load("submission-7b")


def test_pocket_takes_no_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave out --weights"):
        load("pocket", weights=tmp_path)


def test_command(weights: dict[str, Path], photo: Path) -> None:
    words = ["ask", str(photo), QUESTION, "--json", "--no-draft", "--preset", "submission-7b"]
    words += ["--weights", str(weights["submission-7b"]), "--set", "decode.max_new_tokens=4"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["tokens"] == {"total": 576, "kept": 64}


def test_presets_have_the_papers_numbers() -> None:
    one, other = (PRESETS[name] for name in LARGER)
    assert (one.budget.kept_tokens(576), one.budget.rho_v, one.budget.passages) == (64, 0.11, 6)
    assert (one.retrieve.per_region, one.fuse.beta, one.draft.threshold) == (4, 0.10, 0.82)
    assert (other.budget.tokens, other.budget.rho_v, other.budget.rho_r) == (0, 0.40, 0.60)
    assert (other.retrieve.per_region, other.regions.max_regions) == (3, 8)
    assert (other.regions.proposals, other.variant) == ("boxes", "B")
    assert (other.fuse.edges, other.fuse.degree, other.verify.threshold) == ("degree", 4.0, 0.50)


@pytest.mark.parametrize("name", LARGER)
def test_tokens_merged_inside_the_vision_encoder(
    name: str, pipelines: dict[str, Pipeline], photo: Path
) -> None:
    plain = pipelines[name]
    merging = systems.build(Variant("skip", "tome-in-encoder", 6 / 16), plain)
    answer = merging.answer(photo, QUESTION, fast_path=False)
    before = plain.answer(photo, QUESTION, fast_path=False)
    assert answer.trace["encode"].flops < before.trace["encode"].flops
    assert answer.state.tokens.grid == 4
    assert 6 <= len(answer.state.tokens.features.unique(dim=0)) < 16
    assert answer.trace["prune"].kept == 6
    assert sum(len(region.members) for region in answer.state.regions) == 16
    # Those who do not ask for it get what they got before, from the same networks.
    assert isinstance(merging.backbone, ClipVicuna)
    assert isinstance(plain.backbone, ClipVicuna)
    assert merging.backbone.clip is plain.backbone.clip
    again = plain.answer(photo, QUESTION, fast_path=False)
    assert torch.equal(again.state.tokens.features, before.state.tokens.features)
    all_kept = systems.build(Variant("skip", "tome-in-encoder", 1.0), plain)
    same = all_kept.answer(photo, QUESTION, fast_path=False).state.tokens
    assert torch.equal(same.features, before.state.tokens.features)
