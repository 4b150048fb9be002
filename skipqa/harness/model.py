"""The pipeline as a model of lmms-eval.

Enters: requests of lmms-eval, each a text and the photo of a document. Leaves: the text of each
answer, without citations. It knows no benchmark: it answers the tasks of this package and those of
others alike, as long as a request asks about one photo.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from lmms_eval.api.instance import Instance
from lmms_eval.api.model import lmms
from PIL import Image
from tqdm import tqdm

from skipqa.errors import UserError, choices
from skipqa.harness.decoding import whole_photos
from skipqa.pipeline import load

SETTINGS = ("preset", "index", "components", "trained", "weights", "fast_path")
OF_THE_HARNESS = ("batch_size", "max_batch_size", "device")  # it gives them to every model


class SkipQA(lmms):  # type: ignore[misc, unused-ignore]
    """`--model_args preset=pocket,index=default+notes,components=FOLDER,fast_path=false`.

    Several indexes are joined by `+`, as in the model names of our server. Decoding is greedy and
    answers are short, so generation settings of a task (`until`, `temperature`) change nothing.
    """

    def __init__(self, preset: str = "pocket", index: str = "default", **given: Any) -> None:
        super().__init__()
        for name in given:
            if name not in SETTINGS and name not in OF_THE_HARNESS:
                raise UserError(f"skipqa has no setting {name!r}: use {choices(name, SETTINGS)}")
        self.batch_size = _batch_size(given.get("batch_size", 1))
        if given.get("device") not in (None, "cpu"):
            raise UserError(f"set SKIPQA_DEVICE={given['device']} instead of --device")
        self.fast_path = bool(given.get("fast_path", True))
        self.pipeline = load(
            str(preset),
            index=str(index).split("+"),
            components=given.get("components"),
            trained=bool(given.get("trained", True)),
            weights=given.get("weights"),
        )

    def generate_until(self, requests: Sequence[Instance]) -> list[str]:
        texts: list[str] = []
        with tqdm(total=len(requests), desc="skipqa", disable=self.rank != 0) as progress:
            for start in range(0, len(requests), self.batch_size):
                batch = requests[start : start + self.batch_size]
                texts += self._answers(batch)
                progress.update(len(batch))
        return texts

    def _answers(self, batch: Sequence[Instance]) -> list[str]:
        questions = [request.args[0] for request in batch]
        photos = [self._photo(request) for request in batch]
        with whole_photos():
            if len(batch) == 1:
                answers = [self.pipeline.answer(photos[0], questions[0], fast_path=self.fast_path)]
            else:
                answers = self.pipeline.answer_batch(
                    photos, questions, fast_path=self.fast_path, together=self.batch_size
                )
        return [answer.text for answer in answers]

    def _photo(self, request: Instance) -> Image.Image | str:
        _, _, doc_to_visual, doc_id, task, split = request.args
        visuals = doc_to_visual(self.task_dict[task][split][doc_id]) or []
        place = f"document {doc_id} of {task}"
        if len(visuals) != 1:
            found = f"{len(visuals)} images" if visuals else "no image"
            raise UserError(f"skipqa answers questions about one image; {place} has {found}")
        if not isinstance(visuals[0], Image.Image | str):
            kind = type(visuals[0]).__name__
            raise UserError(f"skipqa answers questions about one image; {place} has a {kind}")
        return visuals[0]

    def loglikelihood(self, requests: Sequence[Instance]) -> NoReturn:
        raise _unfit(requests, "log-likelihoods")

    def generate_until_multi_round(self, requests: Sequence[Instance]) -> NoReturn:
        raise _unfit(requests, "several rounds")

    def generate_visual_cot(self, requests: Sequence[Instance]) -> NoReturn:
        raise _unfit(requests, "images that the model draws")


def _batch_size(given: Any) -> int:
    if not str(given).isdecimal() or int(given) < 1:
        raise UserError(f"--batch_size {given} is no number of questions: use 1 or more")
    return int(given)


def _unfit(requests: Sequence[Instance], what: str) -> UserError:
    task = requests[0].task_name if requests else "the task"
    return UserError(f"skipqa answers in text; {task} asks for {what} and does not apply to it")
