"""prune: a model of transformers keeps, of each image, the tokens that matter to the question.

Enters: a loaded model. Leaves: the same model, listening: where it fills image features into a
prompt the prompt is noted, and before the language model reads it, the placeholders of less salient
visual tokens are taken out of embeddings, attention mask and positions. Prompt and cache of the
decoder are really shorter; weights and the user's code stay as they are. Families are other files.

Positions of tokens that stay are those of the unpruned prompt, for every family whose language
model takes positions. Steps that follow a shorter prompt come with the mask of the long one
(`generate` knows nothing of this) and get the one that fits their cache.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from skipqa.errors import UserError
from skipqa.plugin import selection
from skipqa.plugin.family import Family
from skipqa.plugin.idefics3 import Idefics3, SmolVlm
from skipqa.plugin.instructblip import InstructBlip
from skipqa.plugin.llava import Llava, LlavaNext
from skipqa.plugin.qwen_vl import Qwen3Vl, QwenVl
from skipqa.plugin.saliency import count_kept, mean_direction, most_salient, saliency
from skipqa.plugin.selection import Kept, MergedPrompt, ShorterPrompt

FAMILIES: dict[str, type[Family]] = {
    "LlavaForConditionalGeneration": Llava,
    "LlavaNextForConditionalGeneration": LlavaNext,
    "Qwen2_5_VLForConditionalGeneration": QwenVl,
    "Qwen3VLForConditionalGeneration": Qwen3Vl,
    "Idefics3ForConditionalGeneration": Idefics3,
    "SmolVLMForConditionalGeneration": SmolVlm,
    "InstructBlipForConditionalGeneration": InstructBlip,
}
SAMPLED_WORDS = 4096  # of the vocabulary, evenly spaced: enough for a mean


def prune(model: Any, keep: float = 0.11) -> Handle:
    """From now on, `model` keeps ceil(keep * n) of the n visual tokens of each image.

    Which ones is decided by the question: all text of the prompt (`saliency.py` has the formula).
    With keep=1 the model computes exactly what it computed before. Undo with the handle's `undo()`,
    or use it as a context.
    """
    if isinstance(keep, bool) or not isinstance(keep, int | float) or not 0 < keep <= 1:
        raise UserError(f"keep is a fraction of visual tokens, 0 < keep <= 1, not {keep!r}")
    names = [one.__name__ for one in type(model).__mro__]
    family = next((FAMILIES[name] for name in names if name in FAMILIES), None)
    if family is None:
        raise UserError(f"cannot prune a {names[0]}; supported are {', '.join(FAMILIES)}")
    return Handle(family(model), float(keep))


class Handle:
    """A model that prunes, until `undo`. `last` is what stayed of the last prompt with images."""

    def __init__(self, family: Family, keep: float) -> None:
        merger = family.merger
        if family.merging in vars(merger):
            raise UserError("this model prunes already; call undo() of the first handle before")
        self.family, self.keep = family, keep
        self.last: Kept | None = None
        self._sizes: Any = None
        self._pending: MergedPrompt | None = None  # merged, not yet read
        self._read: ShorterPrompt | None = None  # the last that was read
        # Shorter prompts by the cache they went into: which mask and positions later steps need
        self._shorter: WeakKeyDictionary[Any, ShorterPrompt] = WeakKeyDictionary()
        self._vocabulary_D: Tensor | None = None
        self._replaced: list[str] = []
        self._replace(family.merging, self._note_prompt)
        self._replace("get_image_features", self._note_sizes)
        before = functools.partial(nn.Module.register_forward_pre_hook, with_kwargs=True)
        self._hooks = [
            before(family.model, self._refuse_unsupported),
            before(merger, self._enter),
            before(family.reader, self._shorten),
            family.reader.register_forward_hook(self._remember_cache),
        ]
        if family.attends is not None:
            self._hooks.append(before(family.attends, self._shorten_cross_attention))

    def undo(self) -> None:
        """The model is as it was. A generation that is under way cannot go on."""
        for hook in self._hooks:
            hook.remove()
        for name in self._replaced:
            delattr(self.family.merger, name)
        self._hooks, self._replaced = [], []
        self._pending = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()

    def _replace(self, name: str, note: Callable[[Any, dict[str, Any]], None]) -> None:
        """The merger's method `name` also calls `note` with what it returns and its arguments."""
        original = getattr(self.family.merger, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def noting(*args: Any, **kwargs: Any) -> Any:
            returned = original(*args, **kwargs)
            note(returned, signature.bind(*args, **kwargs).arguments)
            return returned

        setattr(self.family.merger, name, noting)
        self._replaced.append(name)

    def _refuse_unsupported(self, module: nn.Module, args: tuple[Any, ...], call: Any) -> None:
        if self.keep == 1 or self.family.attends is not None:
            return
        if call.get("labels") is not None:
            raise UserError("a pruned prompt has no place for labels; undo() before training")
        if isinstance(call.get("logits_to_keep"), Tensor):
            raise UserError("logits_to_keep has to be a number of last tokens, not positions")

    def _enter(self, module: nn.Module, args: tuple[Any, ...], call: Any) -> Any:
        """Before the merger's forward: nothing is left of a call that failed."""
        self._pending = self._sizes = None
        encoded = call.get("mm_encoder_outputs")
        if isinstance(encoded, dict) and encoded.get("image") is not None:
            self._sizes = self.family.image_sizes(encoded["image"])
        cache, shorter = self._continued(call)
        if shorter is not None and call.get("position_ids") is None:
            start = cache.get_seq_length() + shorter.removed
            call = {**call, "position_ids": self.family.next_positions(call, start)}
        return args, call

    def _note_sizes(self, image_outputs: Any, call: dict[str, Any]) -> None:
        # The first of a call: Qwen3-VL encodes videos by the same method, after the images.
        if self._sizes is None and hasattr(image_outputs, "pooler_output"):
            self._sizes = self.family.image_sizes(image_outputs)

    def _note_prompt(self, merged: Any, call: dict[str, Any]) -> None:
        if call.get("video_features") is not None:
            return
        input_ids = call["input_ids"]
        visual, not_text = self.family.visual_masks(merged, call)
        question = self.family.question_mask(input_ids, not_text)
        self._pending = MergedPrompt(call["inputs_embeds"], visual, question, self._sizes)

    def _shorten(self, module: nn.Module, args: tuple[Any, ...], call: Any) -> Any:
        """Before the language model reads: a prompt with images, or what follows one."""
        prompt, states = self._pending, call.get("inputs_embeds")
        self._pending = self._read = None
        cache, shorter = self._continued(call)
        if prompt is not None and states is not None and prompt.visual.any():
            if self.keep == 1:  # neither a question nor a mask is needed for that
                self.last = selection.everything(prompt)
                return args, call
            if cache is not None and cache.get_seq_length() > 0:
                raise UserError("a prompt with images is pruned whole: start from an empty cache")
            return args, self._first(prompt, call)
        if shorter is not None:
            return args, self._next(shorter, cache, call)
        return args, call

    def _first(self, prompt: MergedPrompt, call: dict[str, Any]) -> dict[str, Any]:
        states_BND = call["inputs_embeds"]
        # InstructBLIP repeats rows for beams after the images are filled in.
        beams = len(states_BND) // len(prompt.visual)
        mask_BN = _plain_mask(call)
        if mask_BN is None:
            mask_BN = torch.ones(states_BND.shape[:2], dtype=torch.long)
        mask_BN = mask_BN.to(states_BND.device)
        shorter, self.last = selection.select(
            prompt, states_BND[::beams], mask_BN[::beams], self._score, self._pick
        )
        if shorter is None:
            return call
        shorter = selection.repeated(shorter, beams)
        call = {**call, "inputs_embeds": shorter.of_states(states_BND)}
        # Never none: positions with gaps would be taken for several packed sequences.
        call["attention_mask"] = shorter.mask
        if self.family.attends is None:
            positions = call.get("position_ids")
            if positions is None:
                positions = torch.arange(shorter.length, device=states_BND.device)[None]
            call["position_ids"] = shorter.of(positions)
        self.family.shorten_more(call, shorter)
        self._read = shorter
        return call

    def _next(self, shorter: ShorterPrompt, cache: Any, call: dict[str, Any]) -> dict[str, Any]:
        """Steps that follow a shorter prompt."""
        tokens = call.get("inputs_embeds")
        num_new = (call["input_ids"] if tokens is None else tokens).shape[1]
        start, mask = cache.get_seq_length() + shorter.removed, _plain_mask(call)
        first = start
        if mask is not None:
            first = mask.shape[1] - num_new
        elif num_new > 1 and call.get("position_ids") is not None:
            # `generate` with a whole conversation would read again what the cache is short of.
            positions = self.family.text_positions(call["position_ids"])
            first = start if positions is None else int(positions[0, 0])
        if first != start:
            raise UserError(
                "the cache holds a pruned prompt, and these tokens do not continue it: pass the "
                "new tokens alone, with a mask of the unpruned prompt and all that followed"
            )
        grown = shorter.grown_mask(mask, start + num_new - shorter.length)
        call = {**call, "attention_mask": grown}
        if call.get("position_ids") is None:
            device = shorter.columns.device
            call["position_ids"] = torch.arange(start, start + num_new, device=device)[None]
        return call

    def _continued(self, call: dict[str, Any]) -> tuple[Any, ShorterPrompt | None]:
        """The cache of a call, and the shorter prompt in it."""
        cache = call.get("past_key_values")
        if cache is None:
            return None, None
        if cache.get_seq_length() == 0:  # of a new prompt, also where an old cache was emptied
            self._shorter.pop(cache, None)
        return cache, self._shorter.get(cache)

    def _remember_cache(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        cache = getattr(output, "past_key_values", None)
        if self._read is not None and cache is not None:
            self._shorter[cache] = self._read

    def _shorten_cross_attention(
        self, module: nn.Module, args: tuple[Any, ...], call: Any
    ) -> tuple[tuple[Any, ...], Any]:
        """The decoder of an encoder-decoder comes with the mask of the unpruned prompt."""
        mask, states = call.get("encoder_attention_mask"), call.get("encoder_hidden_states")
        shorter = self._read
        if shorter is None or mask is None or states is None or mask.shape[1] == states.shape[1]:
            return args, call
        times = len(mask) // len(shorter.mask)
        return args, {**call, "encoder_attention_mask": selection.repeated(shorter, times).mask}

    def _score(self, visual_VD: Tensor, question_TD: Tensor) -> Tensor:
        if self._vocabulary_D is None:
            embed = self.family.model.get_input_embeddings()
            step = max(1, embed.num_embeddings // SAMPLED_WORDS)
            words = torch.arange(0, embed.num_embeddings, step, device=question_TD.device)
            self._vocabulary_D = mean_direction(embed(words))
        scores_V = saliency(visual_VD, question_TD, self._vocabulary_D)
        empty_V = self.family.without_content(visual_VD)
        return scores_V if empty_V is None else scores_V.masked_fill(empty_V, -torch.inf)

    def _pick(self, saliency_V: Tensor) -> Tensor:
        return most_salient(saliency_V, count_kept(self.keep, len(saliency_V)))


def _plain_mask(call: dict[str, Any]) -> Tensor | None:
    mask = call.get("attention_mask")
    if mask is None or (isinstance(mask, Tensor) and mask.ndim == 2):
        return mask
    raise UserError(
        "cannot prune where the attention mask is prepared beforehand, as for static caches: "
        "use the default cache and a mask of [batch, tokens]"
    )
