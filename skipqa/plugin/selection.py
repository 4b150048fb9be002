"""From a prompt with images to the columns of it that stay.

Enters: which columns of a prompt are visual tokens, which are words of the question, and the
embeddings. Leaves: a `ShorterPrompt`, which shortens masks, positions and embeddings alike, and
`Kept`, the same for a reader. It knows no model.

Shapes: B rows, N columns of the prompt, L of the shorter one, D the decoder's width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from skipqa.errors import UserError

Score = Callable[[Tensor, Tensor], Tensor]  # visual [V, D], question [T, D] -> saliency [V]


@dataclass(frozen=True, slots=True)
class KeptImage:
    row: int  # of the batch
    positions: tuple[int, ...]  # of the visual tokens that stayed, among those of the image
    total: int  # visual tokens of the image


@dataclass(frozen=True, slots=True)
class Kept:
    """What stayed of a prompt."""

    images: tuple[KeptImage, ...]
    prompt_length: int  # columns before
    columns: Tensor  # [B, L]: those of the unpruned prompt that stayed, -1 for added padding

    @property
    def kept(self) -> int:
        return sum(len(image.positions) for image in self.images)

    @property
    def total(self) -> int:
        return sum(image.total for image in self.images)

    @property
    def pruned_length(self) -> int:
        return self.columns.shape[1]


@dataclass(frozen=True, slots=True)
class MergedPrompt:
    """A prompt as the model merges images into it, before any row is repeated for beams."""

    words: Tensor  # [B, N, D] embeddings before the images' are filled in
    visual: Tensor  # [B, N] bool: placeholders of images
    question: Tensor  # [B, N] bool: tokens of the question; padding may still be among them
    sizes: Sequence[int] | None  # visual tokens per image, row by row, where the model says so


@dataclass(frozen=True, slots=True)
class ShorterPrompt:
    columns: Tensor  # [B, L], 0 where padding was added
    added: Tensor  # [B, L] bool: columns of padding
    mask: Tensor  # [B, L] attention mask
    length: int  # N, before

    @property
    def removed(self) -> int:
        return self.length - self.columns.shape[1]

    def of(self, values: Tensor) -> Tensor:
        """[..., B or 1, N] -> [..., B, L]."""
        columns = self.columns.to(values.device).expand(*values.shape[:-2], -1, -1)
        return values.expand(*columns.shape[:-1], -1).gather(-1, columns)

    def of_states(self, states: Tensor) -> Tensor:
        """[B, N, D] -> [B, L, D]."""
        columns = self.columns.to(states.device)
        return states[torch.arange(len(columns), device=states.device)[:, None], columns]

    def grown_mask(self, mask: Tensor | None, num_new: int) -> Tensor | None:
        """Of the shorter prompt and what followed it: [B, N + new] or none -> [B, L + new]."""
        if mask is not None:
            followed = mask[:, self.length :]
        elif self.mask.all():
            return None
        else:
            followed = self.mask.new_ones(len(self.mask), num_new)
        return torch.cat([self.mask.to(followed), followed], dim=1)


def image_columns(prompt: MergedPrompt) -> list[tuple[int, Tensor]]:
    """Row and columns of every image, in the prompt's order.

    Without usable sizes an image is a run of placeholders.
    """
    rows, columns = prompt.visual.nonzero(as_tuple=True)
    sizes = prompt.sizes
    if sizes is None or sum(sizes) != len(rows):
        starts = torch.ones_like(rows, dtype=torch.bool)
        starts[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1] + 1)
        edges = [*starts.nonzero()[:, 0].tolist(), len(rows)]
        sizes = [end - start for start, end in pairwise(edges)]
    images = []
    splits = zip(rows.split(list(sizes)), columns.split(list(sizes)), strict=True)
    for image_rows, image_cols in splits:
        if len(image_rows) == 0:
            continue
        if image_rows[0] != image_rows[-1]:
            raise UserError("an image's placeholders are spread over two prompts of the batch")
        images.append((int(image_rows[0]), image_cols))
    return images


@torch.no_grad()
def select(
    prompt: MergedPrompt, states_BND: Tensor, mask_BN: Tensor, score: Score, pick: Pick
) -> tuple[ShorterPrompt | None, Kept]:
    """Keep of every image what `pick` takes of its scores; nothing to remove gives None."""
    length = mask_BN.shape[1]
    visible = mask_BN.bool()
    stays = torch.ones_like(visible)
    question = prompt.question & visible
    kept = []
    for row, columns in image_columns(prompt):
        words_TD = prompt.words[row, question[row]]
        if len(words_TD) == 0:
            raise UserError(
                "pruning is guided by the question, but the prompt has no text beside its images"
            )
        positions = pick(score(states_BND[row, columns], words_TD.to(states_BND.device)))
        stays[row, columns] = False
        stays[row, columns[positions]] = True
        kept.append(KeptImage(row, tuple(positions.tolist()), len(columns)))
    if stays.all():
        return None, everything(prompt)
    shorter = _shorter(stays, mask_BN)
    columns_BL = shorter.columns.masked_fill(shorter.added, -1).cpu()
    return shorter, Kept(tuple(kept), length, columns_BL)


Pick = Callable[[Tensor], Tensor]  # saliency [V] -> positions that stay, ascending


def everything(prompt: MergedPrompt) -> Kept:
    """A prompt of which nothing is removed."""
    num_rows, length = prompt.visual.shape
    images = tuple(
        KeptImage(row, tuple(range(len(columns))), len(columns))
        for row, columns in image_columns(prompt)
    )
    return Kept(images, length, torch.arange(length).repeat(num_rows, 1))


def _shorter(stays_BN: Tensor, mask_BN: Tensor) -> ShorterPrompt:
    """Rows of one length. Where they keep different numbers, old padding goes and new is added.

    The new padding is on the left, where generation expects it.
    """
    num_rows, length = stays_BN.shape
    counts = stays_BN.sum(1)
    if (counts == counts[0]).all():
        columns = stays_BN.nonzero()[:, 1].view(num_rows, -1)
        added = torch.zeros_like(columns, dtype=torch.bool)
        return ShorterPrompt(columns, added, mask_BN.gather(1, columns), length)
    real_BN = stays_BN & mask_BN.bool()
    longest = int(real_BN.sum(1).max())
    columns = torch.zeros(num_rows, longest, dtype=torch.long, device=stays_BN.device)
    added = torch.ones_like(columns, dtype=torch.bool)
    for row, real_N in enumerate(real_BN):
        here = real_N.nonzero()[:, 0]
        columns[row, longest - len(here) :] = here
        added[row, longest - len(here) :] = False
    return ShorterPrompt(columns, added, (~added).to(mask_BN), length)


def repeated(shorter: ShorterPrompt, times: int) -> ShorterPrompt:
    """For beams: every row `times` times in a row."""
    if times == 1:
        return shorter
    columns, added, mask = (
        part.repeat_interleave(times, 0) for part in (shorter.columns, shorter.added, shorter.mask)
    )
    return ShorterPrompt(columns, added, mask, shorter.length)
