"""SkipModel: the whole pathway around somebody else's vision-language model, which stays frozen.

    model = skipqa.SkipModel.from_pretrained("llava-hf/llava-1.5-7b-hf", index="my-index")
    answer = model.answer("photo.jpg", "Who planted this tree?")

Enters: a model of transformers that `skipqa.prune` knows, its processor, and indexes. Leaves:
answers with evidence and trace. The small networks of `pocket` decide what the question is worth,
what is looked up and which passages are read. The model reads those next to the image (prompt E.4
of the paper) and keeps, of its own visual tokens, the fraction that the budget allows.

Saved or pushed to the Hub is what is not the model's: its name, the settings, and components that
were trained, with a card. No weight of the model is copied, and no code is ever run from the Hub.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from skipqa import pipeline
from skipqa.answer import Answer
from skipqa.backbones.backbone import Completion
from skipqa.components import DELTAS, NAMES, SETTINGS
from skipqa.config import Config, merged
from skipqa.errors import MissingExtra, UserError
from skipqa.files import write_json
from skipqa.knowledge.library import Uri
from skipqa.pipeline import Pipeline
from skipqa.plugin import prune
from skipqa.stages.decode import Decode
from skipqa.stages.prompts import answer_prompt, parse_answer
from skipqa.stages.readers import Reading, names_shown
from skipqa.stages.stage import Parts
from skipqa.state import ImageSource, State
from skipqa.types import Decoded

try:
    from huggingface_hub import ModelHubMixin, snapshot_download
except ImportError:
    raise MissingExtra("SkipModel", "hub") from None

CONFIG = "config.json"  # the Hub's name
# A large decoder reads more passages than the small one, as text. What was trained or calibrated
# with that one's answers says nothing about another's.
DEFAULTS = {
    "decode": {"passages": "text", "max_passages": 6, "max_new_tokens": 256},
    "confidence": {"drafted": [], "looked_up": []},
}
CARD = """\
---
{{ card_data }}
---
# SKIP around {{ model_name }}

Question-guided pruning of visual tokens and passages from your own indexes around a frozen
vision-language model, by [skipqa](https://pypi.org/project/skipqa/). The weights of the model are
not in this repository.

```python
import skipqa

model = skipqa.SkipModel.from_pretrained("{{ repo_id | default('FOLDER', true) }}", index="default")
print(model.answer("photo.jpg", "How is this drink brewed?").text)
```
"""


class SkipModel(
    ModelHubMixin,
    library_name="skipqa",
    pipeline_tag="visual-question-answering",
    tags=["skipqa", "retrieval-augmented", "token-pruning"],
    model_card_template=CARD,
):
    def __init__(
        self,
        model: Any,
        processor: Any,
        index: Uri | Sequence[Uri] | None = None,
        settings: Mapping[str, Any] | None = None,
        components: Path | str | None = None,
    ) -> None:
        """`index` and `components` are as `skipqa.load` has them, for the preset `pocket`; so are
        `settings`, nested: `{"budget": {"rho_v": 0.25}}` keeps a quarter of the visual tokens."""
        with prune(model, keep=1):  # a model that cannot be pruned is reported before anything else
            pass
        self.model, self.processor = model, processor
        self.settings = dict(settings or {})
        base = pipeline.load(
            "pocket", index=index, components=components, overrides=merged(DEFAULTS, self.settings)
        )
        reader = partial(_build_decode, model=model, processor=processor)
        self.pipeline: Pipeline = base.with_stages(decode=reader)

    def answer(self, image: ImageSource, question: str, *, fast_path: bool = False) -> Answer:
        """On the fast path the small drafter may answer; a larger model mostly knows better."""
        return self.pipeline.answer(image, question, fast_path=fast_path)

    def _save_pretrained(self, save_directory: Path) -> None:
        known = {"model": self.model.config._name_or_path, "settings": self.settings}
        write_json(save_directory / CONFIG, known, indent=2)
        folder = self.pipeline.components.folder
        if folder is None:
            return
        for name in (SETTINGS, *(f"{name}.safetensors" for name in (*NAMES, *DELTAS))):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, save_directory / name)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        model: str | None = None,
        index: Uri | Sequence[Uri] | None = None,
        settings: Mapping[str, Any] | None = None,
        components: Path | str | None = None,
        **loading: Any,
    ) -> SkipModel:
        """`model` comes from the saved config; without it `model_id` is the model itself. `loading`
        goes to transformers (`dtype=`, `device_map=`, `quantization_config=` …)."""
        from transformers import AutoModelForImageTextToText, AutoProcessor

        if loading.get("trust_remote_code"):
            raise UserError(
                "skipqa runs no code of a model repository: leave out trust_remote_code"
            )
        where: dict[str, Any] = {
            "cache_dir": cache_dir,
            "force_download": force_download,
            "local_files_only": local_files_only,
            "token": token,
        }
        if model is None:
            model, of_model = model_id, {**where, "revision": revision}
        else:
            of_model = where
            saved = Path(model_id)
            if not saved.is_dir():
                saved = Path(snapshot_download(model_id, revision=revision, **where))
            if components is None and any(saved.glob("*.safetensors")):
                components = saved
        found = AutoModelForImageTextToText.from_pretrained(model, **of_model, **loading)
        processor = AutoProcessor.from_pretrained(model, **of_model)
        return cls(found.eval(), processor, index, settings, components)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> Any:
        name = self.model.config._name_or_path or type(self.model).__name__
        return super().generate_model_card(*args, **{"model_name": name, **kwargs})


class FrozenReader:
    """A vision-language model of transformers reads the image and the facts."""

    def __init__(self, model: Any, processor: Any, parts: Parts) -> None:
        self.model, self.processor = model, processor
        self.backbone, self.config = parts.backbone, parts.config
        self.max_passages = self.config.decode.max_passages

    @torch.inference_mode()
    def __call__(self, state: State, facts: Sequence[str]) -> Reading:
        shown = ", ".join(names_shown(state, self.backbone))
        prompt = answer_prompt(state.budget.level, shown, facts[::-1], state.question.text)
        inputs = self._inputs(state, prompt)
        keep = fraction_kept(state, self.config)
        with prune(self.model, keep) as handle, FlopCounterMode(display=False) as counter:
            generated = self.model.generate(
                **inputs, do_sample=False, max_new_tokens=self.config.decode.max_new_tokens
            )
        new = generated[0]
        if not self.model.config.is_encoder_decoder:
            new = new[inputs["input_ids"].shape[1] :]
        text = self.processor.tokenizer.decode(new, skip_special_tokens=True)
        read = inputs["input_ids"].shape[1] if handle.last is None else handle.last.pruned_length
        completion = Completion(text, read, len(new), counter.get_total_flops())
        how = "as the model says"
        if handle.last is not None:
            how += f", {handle.last.kept} of its {handle.last.total} visual tokens"
        return Reading(Decoded(parse_answer(text)), prompt, completion, how)

    def _inputs(self, state: State, prompt: str) -> Any:
        """As one turn of a conversation, or plainly for a processor without a chat template."""
        if self.processor.chat_template is None:
            inputs = self.processor(images=state.image, text=prompt, return_tensors="pt")
        else:
            content = [{"type": "image", "image": state.image}, {"type": "text", "text": prompt}]
            inputs = self.processor.apply_chat_template(
                [{"role": "user", "content": content}],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
            )
        return inputs.to(self.model.device, self.model.dtype)


def fraction_kept(state: State, config: Config) -> float:
    """V' / V of the budget, which the model applies to its own visual tokens."""
    return min(1.0, state.budget.tokens / config.encode.num_tokens)


def _build_decode(parts: Parts, *, model: Any, processor: Any) -> Decode:
    return Decode(FrozenReader(model, processor, parts), parts.config.confidence)
