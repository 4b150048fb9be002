"""The benchmarks, each in a module of its own: its official files, and its official score.

To add one, write `tasks/NAME.py` with a class that follows the protocol `Task` and inherits from
`TaskDefaults` (task.py; `viquae.py` is an example), importing numpy and the like inside functions.
Import its instance below and add it to `_ALL`: `skipqa eval NAME` and `skipqa score NAME` exist.
Its test is a small official layout in `LAYOUTS` of tests/tasks/test_loaders.py. If its files can be
downloaded, list them in data/manifest.json for `skipqa data fetch NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from skipqa.tasks import aokvqa
from skipqa.tasks.evqa import EVQA
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.fvqa import FVQA
from skipqa.tasks.infoseek import INFOSEEK
from skipqa.tasks.llava_bench import LLAVA_BENCH
from skipqa.tasks.okvqa import OKVQA
from skipqa.tasks.pathvqa import PATHVQA
from skipqa.tasks.pocket_kb import POCKET_KB
from skipqa.tasks.scores import Report
from skipqa.tasks.task import FileScorer, Scorer, Task
from skipqa.tasks.viquae import VIQUAE
from skipqa.tasks.vqav2 import VQAV2

_ALL: tuple[Task, ...] = (
    OKVQA,
    VQAV2,
    aokvqa.DIRECT_ANSWER,
    aokvqa.MULTIPLE_CHOICE,
    INFOSEEK,
    EVQA,
    VIQUAE,
    FVQA,
    PATHVQA,
    LLAVA_BENCH,
    POCKET_KB,
)
TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _ALL})
SCORE_FILES: Mapping[str, FileScorer] = MappingProxyType(
    {name: score for task in _ALL for name, score in task.file_scorers().items()}
)

__all__ = ["SCORE_FILES", "TASKS", "Example", "QuestionId", "Report", "Scorer", "Task"]
