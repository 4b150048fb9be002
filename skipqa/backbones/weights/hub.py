"""Published weights that are on this machine already: a folder, or the Hugging Face cache.

Enters: which repositories a preset is made of. Leaves: their folders, and from a folder its
config, its tokenizer and its tensors, read one at a time so that a 13B model is never in memory
twice. Nothing is downloaded here: tens of gigabytes are the user's decision, so a missing
repository is reported in one line with the command that downloads it. transformers reads configs
and older tokenizers; the networks are those of `networks/`, so that every preset runs the same
decoder, the one whose cost is measured.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer
from torch import Tensor, nn

from skipqa.errors import MissingExtra, UserError

# Single files first, then indices of sharded ones; safetensors before pickle
WHOLE = (
    *("model.safetensors", "open_clip_model.safetensors"),
    *("pytorch_model.bin", "open_clip_pytorch_model.bin"),
)
PARTS = ("model.safetensors.index.json", "pytorch_model.bin.index.json")

Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Repository:
    id: str
    gigabytes: float
    leave: str = ""  # pattern of files that are not needed

    @property
    def folder(self) -> str:
        return self.id.split("/")[-1]

    def download_command(self, weights: Path | None) -> str:
        command = f"hf download {self.id}"
        if self.leave:
            command += f" --exclude '{self.leave}'"
        return command if weights is None else f"{command} --local-dir {weights / self.folder}"


def locate(preset: str, required: Sequence[Repository], weights: Path | None) -> list[Path]:
    """A folder for each repository: under `weights`, else `SKIPQA_WEIGHTS`, else in the cache."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise MissingExtra(f"preset {preset}", "hub") from None
    if weights is None and (named := os.environ.get("SKIPQA_WEIGHTS")):
        weights = Path(named)
    found = {one: _cached(one) if weights is None else weights / one.folder for one in required}
    missing = [one for one, folder in found.items() if folder is None or not _is_complete(folder)]
    if missing:
        parts = ", ".join(f"{one.id} ({one.gigabytes:g} GB)" for one in missing)
        where = "in the Hugging Face cache" if weights is None else f"under {weights}"
        commands = "; ".join(one.download_command(weights) for one in missing)
        raise UserError(
            f"preset {preset} needs weights that are not {where}: {parts}. Run: {commands}"
            + (" (or name a folder that holds them: --weights DIR)" if weights is None else "")
        )
    return [folder for folder in found.values() if folder is not None]


def _cached(repository: Repository) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository.id, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def _is_complete(folder: Path) -> bool:
    """Whether all weight files are there: a download may have been interrupted."""
    files = _weight_files(folder)
    return bool(files) and all(path.is_file() for path in files)


def _weight_files(folder: Path) -> list[Path]:
    for name in WHOLE:
        if (folder / name).is_file():
            return [folder / name]
    for name in PARTS:
        if (folder / name).is_file():
            parts = json.loads((folder / name).read_text())["weight_map"].values()
            return [folder / part for part in sorted(set(parts))]
    return []


def read_config(folder: Path) -> Any:
    """transformers' config, including the defaults that the file leaves out."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder)


def read_tokenizer(folder: Path) -> Tokenizer:
    """Without padding and truncation. Vicuna's is published only in an older format."""
    if (folder / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        from transformers import AutoTokenizer

        try:
            converted = AutoTokenizer.from_pretrained(folder)
        except (ImportError, ValueError):  # without sentencepiece it takes the file for another's
            raise MissingExtra(f"the tokenizer of {folder.name}", "hub") from None
        tokenizer = Tokenizer.from_str(converted.backend_tokenizer.to_str())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def device_and_dtype() -> tuple[torch.device, torch.dtype]:
    """A GPU in bfloat16 where there is one, else the CPU in float32, which is faster there."""
    if torch.cuda.is_available():
        return torch.device("cuda"), torch.bfloat16
    return torch.device("cpu"), torch.float32


class Tensors(Mapping[str, Tensor]):
    """The tensors of a folder by name, each read from its file on access."""

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
        rename: Callable[[str], str] = lambda name: name,
    ) -> None:
        """`rename` maps the names in the files to those used here."""
        self._device, self._dtype = device, dtype
        self._readers: dict[str, Callable[[], Tensor]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        for path in _weight_files(folder):
            for name, shape, read in _open(path):
                self._readers[rename(name)] = read
                self.shapes[rename(name)] = shape

    def under(self, prefix: str, instead: str = "") -> Tensors:
        """Those whose name starts with `prefix`, which `instead` replaces."""
        part = copy.copy(self)
        names = {n: instead + n.removeprefix(prefix) for n in self if n.startswith(prefix)}
        part._readers = {new: self._readers[old] for old, new in names.items()}
        part.shapes = {new: self.shapes[old] for old, new in names.items()}
        return part

    def __getitem__(self, name: str) -> Tensor:
        return self._readers[name]().to(self._device, self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def _open(path: Path) -> Iterator[tuple[str, tuple[int, ...], Callable[[], Tensor]]]:
    try:
        if path.suffix == ".safetensors":
            file = safe_open(path, framework="pt")
            for name in file.keys():  # noqa: SIM118
                shape = tuple(file.get_slice(name).get_shape())
                yield name, shape, lambda name=name: file.get_tensor(name)  # type: ignore[misc]
        else:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            for name, tensor in state.items():
                yield name, tuple(tensor.shape), lambda tensor=tensor: tensor  # type: ignore[misc]
    except UnpicklingError:  # anything but tensors in it could run code when it is read
        raise UserError(
            f"{path} holds more than tensors, or is damaged: take the model's .safetensors instead"
        ) from None
    except (OSError, SafetensorError, RuntimeError, EOFError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path} is damaged ({reason}): download it again") from None


@contextmanager
def reading(repository: Repository, folder: Path) -> Iterator[None]:
    """Turns a missing tensor name into an error about the folder."""
    try:
        yield
    except KeyError as error:
        raise UserError(f"{folder} is not {repository.id}: it has no {error.args[0]}") from None


def fill(build: Callable[[], Network], state: Mapping[str, Tensor]) -> Network:
    """The network with these tensors as its weights, without allocating or initialising others."""
    with torch.device("meta"):
        network = build()
    network.load_state_dict(state, assign=True)
    return network.eval().requires_grad_(False)
