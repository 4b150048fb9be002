"""Print the folder of the tasks, for `lmms-eval --include_path "$(python -m skipqa.harness)"`."""

from __future__ import annotations

from skipqa.harness import TASK_FOLDER

if __name__ == "__main__":
    print(TASK_FOLDER)
