"""The benchmarks, each in a module of its own: its official files, and its official score.

`TASKS` are asked by `skipqa eval NAME`; `SCORE_FILES` score predictions that are already there,
`skipqa score NAME`: the parameters of such a function are the files that it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from skipqa.tasks import aokvqa, evqa, infoseek, viquae
from skipqa.tasks.example import Example, QuestionId
from skipqa.tasks.okvqa import OKVQA
from skipqa.tasks.pocket_kb import POCKET_KB
from skipqa.tasks.scores import Report
from skipqa.tasks.task import Scorer, Task
from skipqa.tasks.vqav2 import VQAV2

_ALL: tuple[Task, ...] = (
    OKVQA,
    VQAV2,
    aokvqa.DIRECT_ANSWER,
    aokvqa.MULTIPLE_CHOICE,
    infoseek.INFOSEEK,
    evqa.EVQA,
    viquae.VIQUAE,
    POCKET_KB,
)
TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _ALL})

SCORE_FILES: Mapping[str, Callable[..., Report]] = MappingProxyType(
    {
        "okvqa": OKVQA.score_files,
        "vqav2": VQAV2.score_files,
        "aokvqa": aokvqa.score_files,
        "infoseek": infoseek.score_files,
        "evqa": evqa.score_files,
        "viquae": viquae.score_files,
        "viquae-retrieval": viquae.score_retrieval_files,
    }
)

__all__ = ["SCORE_FILES", "TASKS", "Example", "QuestionId", "Report", "Scorer", "Task"]
