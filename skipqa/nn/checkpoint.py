"""One component, one safetensors file: its weights, its config, the preset it belongs to.

Enters: a module with a frozen dataclass `config`. Leaves: a file that only the same component
of the same preset with the same config will load. The presets are not interchangeable, so a
wrong pairing is an error for the user, never a silent reshape.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from skipqa.errors import UserError
from skipqa.files import atomic
from skipqa.nn import compact

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")
FORMAT = "skipqa-component/1"


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    component: str
    preset: str
    config: dict[str, Any]


def save(module: nn.Module, path: Path, *, preset: str, eight_bit: bool = False) -> None:
    state = module.state_dict()
    tensors = {name: value.detach().cpu().contiguous() for name, value in state.items()}
    save_tensors(
        compact.pack(tensors) if eight_bit else tensors,
        path,
        component=type(module).__name__,
        preset=preset,
        config=_config(module),
    )


def save_tensors(
    tensors: Mapping[str, Tensor],
    path: Path,
    *,
    component: str,
    preset: str,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Writes next to the target and renames, so that a reader never sees half a file."""
    metadata = {
        "format": FORMAT,
        "component": component,
        "preset": preset,
        "config": json.dumps(config or {}),
    }
    with atomic(path) as partial:
        save_file(dict(tensors), partial, metadata=metadata)


def load(module: nn.Module, path: Path, *, preset: str) -> None:
    """Fills `module`, built from the preset's config, or says why the file is not for it."""
    header = check(path, component=type(module).__name__, preset=preset)
    required = json.loads(json.dumps(_config(module)))
    stored = _defaults(module) | header.config  # an older file lacks what came later
    if stored != required:
        changed = sorted(
            f"{name} {_short(stored.get(name))} != {_short(required.get(name))}"
            for name in stored.keys() | required.keys()
            if stored.get(name) != required.get(name)
        )
        raise UserError(f"{path} has another config than asked for: {', '.join(changed)}")
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    module.load_state_dict(compact.unpack(tensors))


def check(path: Path, *, component: str, preset: str) -> Header:
    """The header of a file that holds just this, for just this preset."""
    header = read_header(path)
    if header.component != component:
        raise UserError(f"{path} holds a {header.component}, not a {component}")
    if header.preset != preset:
        raise UserError(
            f"{path} was trained for preset '{header.preset}' and cannot serve '{preset}': "
            f"presets are not interchangeable"
        )
    return header


def read_header(path: Path) -> Header:
    """What a file holds, without its weights."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except FileNotFoundError:
        raise UserError(f"no checkpoint at {path}") from None
    except SafetensorError as error:
        raise UserError(f"{path} is damaged or no safetensors file: {error}") from None
    if metadata.get("format") != FORMAT:
        raise UserError(f"{path} is not a skipqa component")
    return Header(metadata["component"], metadata["preset"], json.loads(metadata["config"]))


def read_config(path: Path, kind: type[C]) -> C:
    """The config that a file was saved with, to build the module that will load it."""
    stored = read_header(path).config
    known = {field.name for field in dataclasses.fields(kind)}
    if unknown := stored.keys() - known:
        raise UserError(
            f"{path} holds no {kind.__name__} of this version: it has {', '.join(sorted(unknown))}"
        )
    return kind(**{name: _frozen(value) for name, value in stored.items()})


def _defaults(module: nn.Module) -> dict[str, Any]:
    fields = dataclasses.fields(module.config)  # type: ignore[arg-type]
    found = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    return dict(json.loads(json.dumps(found)))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]}…"


def _config(module: nn.Module) -> dict[str, Any]:
    config = module.config
    assert dataclasses.is_dataclass(config)
    return dataclasses.asdict(config)
