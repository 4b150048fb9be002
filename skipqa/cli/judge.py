"""skipqa judge: answers that only a reader can score, reviewed by a language model elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skipqa.cli.console import Json, Settings, counting, err, plural, print_json
from skipqa.cli.endpoint import EndpointOptions, tokens
from skipqa.cli.options import grouped
from skipqa.errors import UserError

if TYPE_CHECKING:
    from skipqa.prompted.asking import Asking
    from skipqa.tasks.example import QuestionId
    from skipqa.tasks.llava_bench import Case

BENCHMARK = "llava-bench"
MAX_TOKENS = 1_024  # of a review


@grouped
def judge(
    server: EndpointOptions,
    benchmark: Annotated[str, typer.Argument(help=f"{BENCHMARK}.", show_default=False)],
    data: Annotated[Path, typer.Option(help="Folder of the official files.", show_default=False)],
    answers: Annotated[
        Path, typer.Option(help="Answers: JSON Lines (question_id, text).", show_default=False)
    ],
    out_file: Annotated[
        Path,
        typer.Option("--out", help="The reviews; a stopped run goes on there.", show_default=False),
    ],
    settings: Settings = None,
    json: Json = False,
) -> None:
    """Have a language model compare answers with the reference, and add up its scores.

    The judge reads a description of the photo, so it needs no vision. Every review is written down
    at once: `skipqa score llava-bench` adds them up again without it, and the same command asks
    only for what is missing. An answer that has changed, or another model, is reviewed anew. The
    API key is read from the environment.

    Examples:

      skipqa eval llava-bench --data llava-bench --out runs/llava-bench

      skipqa judge llava-bench --data llava-bench --answers runs/llava-bench/official/answers.jsonl
      --endpoint http://127.0.0.1:8000/v1 --model judge --out runs/llava-bench/reviews.jsonl

      skipqa score llava-bench --reviews runs/llava-bench/reviews.jsonl
    """
    from skipqa.cli.score import show
    from skipqa.config import override, read_settings
    from skipqa.files import append_jsonl
    from skipqa.prompted import EndpointConfig, Usage
    from skipqa.prompted.asking import Asking, Prompt, concurrently
    from skipqa.tasks.llava_bench import LLAVA_BENCH, cases, evaluate, read_answers

    if benchmark != BENCHMARK:
        raise UserError(f"{benchmark!r} needs no judge: use `skipqa score {benchmark}`")
    _, model = server.named()
    config = override(EndpointConfig(), read_settings(settings or ()))
    examples = LLAVA_BENCH.load(data, LLAVA_BENCH.default_split)
    judged = cases(examples, read_answers(answers))
    reviews = read_reviews(out_file, judged, model)
    missing = [case for case in judged if case.question_id not in reviews]
    endpoint = server.open(config)

    def review(case: Case) -> tuple[Asking, str]:
        asking = Asking(endpoint, model)
        return asking, asking.ask("review", Prompt(case.prompt()), MAX_TOKENS).text

    spent = Usage()
    with counting(len(judged)) as report:
        report("reviews", len(reviews), len(judged))
        for case, (asking, content) in concurrently(missing, review, config.concurrency):
            row = {**case.review(content), "judge": model, "answer_sha256": _sha256(case.answer)}
            append_jsonl(out_file, row)
            reviews[case.question_id] = row
            spent += asking.usage
            report("reviews", len(reviews), len(judged))
    err.print(tokens(spent), highlight=False)
    found = evaluate(list(reviews.values()), [case.question_id for case in judged])
    for note in found.notes:
        err.print(f"note: {note}", highlight=False, soft_wrap=True)
    if json:
        print_json({**found.as_dict(), "judge": model, "reviews": str(out_file)})
    else:
        show(found)
        print(f"{plural(len(reviews), 'review')} in {out_file}")


def read_reviews(
    path: Path, judged: Iterable[Case], model: str
) -> dict[QuestionId, Mapping[str, Any]]:
    """Those of this judge, of the answers as they are now, that have scores."""
    from skipqa.files import check_rows, read_appended
    from skipqa.tasks.llava_bench import REVIEW_FIELDS

    current = {case.question_id: _sha256(case.answer) for case in judged}
    return {
        row["question_id"]: row
        for row in check_rows(str(path), read_appended(path), REVIEW_FIELDS)
        if row.get("judge") == model
        and row.get("tuple") is not None
        and current.get(row["question_id"]) == row.get("answer_sha256")
    }


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
