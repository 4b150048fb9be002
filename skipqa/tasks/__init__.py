"""The benchmarks, each in a module of its own: its official files, and its official score.

To add one:

1. Write `tasks/NAME.py` with a class that follows the protocol `Task` (task.py) and inherits from
   `TaskDefaults`: `viquae.py` is a short example. Import numpy and the like inside functions.
2. Add its instance to `_ALL` below. `skipqa eval NAME` and `skipqa score NAME` then exist.
3. Add a small official layout to `LAYOUTS` in tests/tasks/test_loaders.py.
4. Where the files can be downloaded, add them to data/manifest.json for `skipqa data fetch NAME`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from skipqa.tasks import aokvqa
from skipqa.tasks.evqa import EVQA
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.infoseek import INFOSEEK
from skipqa.tasks.okvqa import OKVQA
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
    POCKET_KB,
)
TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _ALL})
SCORE_FILES: Mapping[str, FileScorer] = MappingProxyType(
    {name: score for task in _ALL for name, score in task.file_scorers().items()}
)

__all__ = ["SCORE_FILES", "TASKS", "Example", "QuestionId", "Report", "Scorer", "Task"]
