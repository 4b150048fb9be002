"""Two real processes on gloo train as one does: losses, weights, resuming at another number."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import together
import torch
from safetensors.torch import load_file
from torch import Tensor, distributed

from skipqa.errors import UserError
from skipqa.training import processes
from skipqa.training.processes import ALONE, Replicated, Sharded, chosen
from skipqa.training.run import Run

CONFIGS = Path(processes.__file__).parent / "configs"
FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
FORMS: dict[str, Mapping[str, str]] = {
    "ddp": {},
    "fsdp2": {**FSDP, "FSDP_TRANSFORMER_CLS_TO_WRAP": "Layer"},
    "zero2": {**FSDP, "FSDP_RESHARD_AFTER_FORWARD": "false"},
}


@pytest.fixture(scope="module")
def server() -> ForkServerContext:
    """Processes that have torch already: a pair of them starts in a moment."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "pytest"])
    return context


def run_as(environment: Mapping[str, str], work: Callable[[], None]) -> None:
    os.environ.update(environment)
    torch.set_num_threads(1)
    work()


def train_in_two(
    server: ForkServerContext, form: str, work: Callable[[], None]
) -> list[int | None]:
    """Exit codes. The rendezvous is that of `torchrun`: the store lives here, at a free port."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2"}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "CUDA_VISIBLE_DEVICES": "", **FORMS[form]}
    started = [
        server.Process(target=run_as, args=({**shared, "RANK": rank, "LOCAL_RANK": rank}, work))
        for rank in "01"
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(300)
        if process.exitcode is None:
            process.kill()
    return [process.exitcode for process in started]


def weights(folder: Path) -> dict[str, Tensor]:
    return torch.load(folder / "weights.pt", weights_only=True)


def assert_same(folder: Path, other: Path) -> None:
    one, two = weights(folder), weights(other)
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], rtol=0, atol=1e-6)
    first, second = recorded(folder), recorded(other)
    for place in first.keys() & second.keys():
        assert first[place] == pytest.approx(second[place], abs=1e-5)
    assert max(first) in second


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone")
    together.main(folder, 4, -1)
    return folder


@pytest.mark.parametrize("form", FORMS)
def test_two_processes_train_as_one(
    form: str, server: ForkServerContext, alone: Path, tmp_path: Path
) -> None:
    assert train_in_two(server, form, partial(together.main, tmp_path, 4, -1)) == [0, 0]
    assert_same(alone, tmp_path)


def killed_alone(folder: Path) -> None:
    with pytest.raises(SystemExit):
        together.main(folder, 4, 5)


@pytest.mark.parametrize("form", ["ddp", "fsdp2"])
def test_two_go_on_where_one_was_killed(
    form: str, server: ForkServerContext, alone: Path, tmp_path: Path
) -> None:
    killed_alone(tmp_path)
    assert not (tmp_path / "weights.pt").exists()
    assert train_in_two(server, form, partial(together.main, tmp_path, 4, -1)) == [0, 0]
    assert_same(alone, tmp_path)


@pytest.mark.parametrize("form", ["ddp", "fsdp2"])
def test_one_goes_on_where_two_were_killed(
    form: str, server: ForkServerContext, alone: Path, tmp_path: Path
) -> None:
    assert train_in_two(server, form, partial(together.main, tmp_path, 4, 5))[0] == 9
    state = torch.load(tmp_path / "state" / "toy.pt", weights_only=True)
    assert state["step"] == 5
    assert state["module"].keys() == weights(alone).keys()
    together.main(tmp_path, 4, -1)
    assert_same(alone, tmp_path)


@pytest.mark.parametrize("form", ["ddp", "fsdp2"])
def test_factors_beside_a_decoder_in_two_processes(
    form: str, server: ForkServerContext, tmp_path: Path
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    together.lora(one)
    assert train_in_two(server, form, partial(together.lora, two)) == [0, 0]
    assert_same(one, two)


@pytest.mark.slow
def test_a_whole_stage_in_two_processes(server: ForkServerContext, tmp_path: Path) -> None:
    """Every part of the first stage, from the encoder to the reader, as one process trains it."""
    world = together.write_world(tmp_path / "world")
    one, two = tmp_path / "one", tmp_path / "two"
    together.stage1(world, one)
    assert train_in_two(server, "ddp", partial(together.stage1, world, two)) == [0, 0]
    expected, found = (recorded(folder) for folder in (one, two))
    assert expected.keys() == found.keys()
    for place, loss in expected.items():
        assert found[place] == pytest.approx(loss, abs=1e-5), place
    for path in one.glob("*.safetensors"):
        tensors = load_file(two / path.name)
        for name, value in load_file(path).items():  # in half precision, or in eight bits
            places = 1.01 if value.dtype is torch.int8 else 2e-4
            torch.testing.assert_close(value, tensors[name], rtol=0, atol=places)


def recorded(folder: Path) -> dict[tuple[str, int], float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {(row["part"], row["step"]): row["loss"] for row in rows}


def test_a_step_of_several_batches_is_one_of_their_mean(tmp_path: Path) -> None:
    """Independently: one step of plain AdamW on the mean of four losses."""
    from skipqa.training.loop import Optimisation, fit

    x = torch.randn(4, 6, 3, generator=torch.Generator().manual_seed(0))

    def start() -> torch.nn.Linear:
        torch.manual_seed(3)
        return torch.nn.Linear(3, 1)

    trained, expected = start(), start()
    steps = Optimisation(1, 1e-2, warmup=1, ema_decay=0.0)
    fit(
        "a",
        trained,
        lambda draw: trained(x[draw]).square().mean(),
        steps,
        Run(tmp_path, accumulate=4),
    )
    torch.stack([expected(one).square().mean() for one in x]).mean().backward()
    torch.nn.utils.clip_grad_norm_(expected.parameters(), 1.0)
    groups = [{"params": [expected.weight], "weight_decay": 0.05}, {"params": [expected.bias]}]
    torch.optim.AdamW(groups, 1e-2, (0.9, 0.95), weight_decay=0.0).step()
    for one, other in zip(trained.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_batches_have_to_be_divided(server: ForkServerContext, tmp_path: Path) -> None:
    from skipqa.training.loop import _draws

    run = Run(tmp_path, processes=Replicated(1, 2), accumulate=4)
    assert range(8, 12)[_draws(run)] == range(10, 12)
    with pytest.raises(UserError, match="2 processes cannot divide 3 batches of a step"):
        _draws(Run(tmp_path, processes=Replicated(0, 2), accumulate=3))


def test_a_run_goes_on_with_the_same_batches_only(tmp_path: Path) -> None:
    Run(tmp_path, accumulate=4).claim({"stage": "a"})
    with pytest.raises(UserError, match="a run with other accumulate"):
        Run(tmp_path, accumulate=2).claim({"stage": "a"})


def test_the_environment_decides() -> None:
    two = {"RANK": "1", "WORLD_SIZE": "2"}
    assert chosen({}) == chosen({"WORLD_SIZE": "1", **FSDP}) == ALONE
    assert chosen(two) == Replicated(1, 2)
    assert chosen(two | FORMS["fsdp2"]) == Sharded(1, 2, frozenset({"Layer"}), reshard=True)
    assert chosen(two | FORMS["zero2"]) == Sharded(1, 2, frozenset(), reshard=False)
    with pytest.raises(UserError, match="fsdp_version: 2"):
        chosen(two | FSDP | {"FSDP_VERSION": "1"})
    with pytest.raises(UserError, match=r"configs/zero2\.yaml"):
        chosen(two | {"ACCELERATE_USE_DEEPSPEED": "true"})


@pytest.mark.parametrize("form", FORMS)
def test_accelerate_sets_this_environment_for_our_configs(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `accelerate launch` itself makes of the file."""
    pytest.importorskip("accelerate")
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = ["--config_file", str(CONFIGS / f"{form}.yaml"), "-m", "skipqa.training", "stage1"]
    options, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert options.num_processes == 2
    environment = prepare_multi_gpu_env(options)
    set_here = {name: environment[name] for name in environment if name not in os.environ}
    found = chosen({**set_here, "RANK": "0", "WORLD_SIZE": "2"})
    assert found == chosen({**FORMS[form], "RANK": "0", "WORLD_SIZE": "2"})
