"""skipqa inside lmms-eval: our pipeline as a model of it, our benchmarks as tasks of it.

    lmms-eval --model skipqa --include_path "$(python -m skipqa.harness)" --tasks skipqa_okvqa

`manifest.py` tells lmms-eval of the model, `model.py` is the model, and the folder
`lmms_eval_tasks/` has the tasks: YAML files that name functions of `functions.py`, which read the
official files that `benchmarks.py` finds. Only `model.py` imports lmms-eval with its module.
"""

from __future__ import annotations

from pathlib import Path

TASK_FOLDER = Path(__file__).with_name("lmms_eval_tasks")  # for --include_path
