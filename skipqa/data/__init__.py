"""Official benchmark files, each data set in its own module behind one protocol."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from skipqa.data.aokvqa import AOKVQA
from skipqa.data.evqa import EVQA
from skipqa.data.example import DataSet, Example, QuestionId
from skipqa.data.infoseek import INFOSEEK
from skipqa.data.okvqa import OKVQA
from skipqa.data.viquae import VIQUAE
from skipqa.data.vqav2 import VQAV2

DATA_SETS: Mapping[str, DataSet] = MappingProxyType(
    {data.name: data for data in (OKVQA, VQAV2, AOKVQA, INFOSEEK, EVQA, VIQUAE)}
)

__all__ = ["DATA_SETS", "DataSet", "Example", "QuestionId"]
