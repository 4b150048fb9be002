"""Questions for training that a vision-language model elsewhere writes (paper, appendix D).

Photos and passages about what they show enter (`pairs.py`). For each pair the model writes a
question that takes both to answer (`writing.py`), and three filters decide (`filters.py`). Leaves:
rows that `skipqa eval vqa` reads, with their gold passage, and next to them what was rejected and
why (`generate.py`).
"""

from skipqa.synthetic.config import SyntheticConfig
from skipqa.synthetic.generate import Generator, Outcome, write_rows

__all__ = ["Generator", "Outcome", "SyntheticConfig", "write_rows"]
