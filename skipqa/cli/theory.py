"""skipqa theory: what the paper's bound requires, and whether its assumptions hold here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from skipqa.cli.console import (
    ComponentsFolder,
    Indexes,
    Json,
    Preset,
    Untrained,
    WeightsFolder,
    counting,
    err,
    out,
    plural,
    prepare_process,
    print_json,
    working,
)
from skipqa.errors import UserError

app = typer.Typer(invoke_without_command=True)


@app.callback()
def theory(
    context: typer.Context,
    V: Annotated[int, typer.Option("--V", help="Visual tokens.")] = 576,
    K: Annotated[int, typer.Option("--K", help="Passages.")] = 16,
    epsilon: Annotated[float, typer.Option("--eps", help="Information that may be lost.")] = 0.05,
    lipschitz: Annotated[float, typer.Option("--L", help="Lipschitz constant.")] = 1.0,
    eta: Annotated[float, typer.Option("--eta", help="Largest error of the saliency.")] = 0.01,
    C: Annotated[
        float | None, typer.Option("--C", help="Constant of the bound, in place of --L and --eta.")
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(help="Results of a sweep over kept tokens (JSON); may be repeated."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw predicted and measured V' into FILE.svg or FILE.png.")
    ] = None,
    json: Json = False,
) -> None:
    """The sparsity bound's V' and K', its likely range, and measured sweeps.

    Examples:

      skipqa theory

      skipqa theory --V 2880 --eps 0.02 --eta 0.018

      skipqa theory --measured sweep.json --plot bound.svg
    """
    if context.invoked_subcommand is not None:
        return
    from dataclasses import asdict

    from skipqa.claims.bound import NOTES, constant, passages_needed, read_sweeps, tokens_needed

    used = constant(lipschitz, eta) if C is None else C
    tokens, passages = tokens_needed(V, epsilon, used), passages_needed(K, epsilon)
    sweeps = [sweep for path in measured or () for sweep in read_sweeps(path)]
    compared = [
        (sweep.available, tokens_needed(sweep.available, epsilon, used), sweep.needed(epsilon))
        for sweep in sweeps
    ]
    if plot is not None:
        from skipqa.claims.bound_figure import draw
        from skipqa.figures import save

        try:
            save(draw(sweeps, epsilon, used), plot)
        except OSError as error:
            raise UserError(f"{plot} cannot be written: {error.strerror}") from None
        err.print(f"drawn into {plot}")
    if json:
        print_json(
            {
                "tokens": {"available": V, **asdict(tokens)},
                "passages": {"available": K, **asdict(passages)},
                "epsilon": epsilon,
                "compared": [
                    {
                        "available": available,
                        "predicted": bound.count,
                        "likely": bound.likely,
                        "measured": needed,
                    }
                    for available, bound, needed in compared
                ],
                "notes": NOTES,
            }
        )
        return
    from rich.table import Table

    table = Table(
        "", "available", "bound", "likely range", "C", title=f"To lose at most {epsilon:g}"
    )
    for name, available, bound in (("V'", V, tokens), ("K'", K, passages)):
        required = f"{bound.count}" + (" (everything: vacuous)" if bound.vacuous else "")
        low, high = bound.likely
        table.add_row(name, f"{available}", required, f"{low}–{high}", f"{bound.constant:.3f}")
    out.print(table)
    if compared:
        table = Table("V", "predicted V'", "likely range", "measured V'")
        for available, bound, needed in compared:
            low, high = bound.likely
            table.add_row(f"{available}", f"{bound.count}", f"{low}–{high}", f"{needed}")
        out.print(table)
    for note in NOTES:
        out.print(f"• {note}", style="dim")


@app.command("fidelity")
def fidelity(
    questions: Annotated[
        Path, typer.Option(help="JSON Lines: question_id, image, question, answers or answer.")
    ],
    images: Annotated[Path, typer.Option(help="The photos: a zip or a folder.")],
    proxy: Annotated[
        Literal["answer", "evidence"],
        typer.Option(
            help="What a token's worth is measured by: the probability of the correct answer, or "
            "the best passage's verification score (faster)."
        ),
    ] = "answer",
    tokens: Annotated[
        int | None, typer.Option(min=2, help="Visual tokens per question, drawn at random.")
    ] = 64,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Ask only this many questions, drawn at random.")
    ] = 20,
    half_kept: Annotated[
        bool, typer.Option("--half-kept", help="Draw half of the tokens from those kept.")
    ] = False,
    subset: Annotated[
        str | None, typer.Option(help="Ask only questions of this subset, such as crowded.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    index: Indexes = None,
    components: ComponentsFolder = None,
    preset: Preset = "pocket",
    weights: WeightsFolder = None,
    untrained: Untrained = False,
    results: Annotated[
        Path | None, typer.Option(help="Folder to save the result in, for `skipqa report runs`.")
    ] = None,
    json: Json = False,
) -> None:
    """How well saliency predicts what a visual token is worth: eta and Spearman's correlation.

    Each token in turn is replaced by the mean token, and the pipeline runs again.

    Examples:

      skipqa theory fidelity --questions val.jsonl --images val.zip

      skipqa theory fidelity --questions val.jsonl --images photos --proxy evidence --limit 100

      skipqa theory fidelity --questions pocket-kb/val.jsonl --images pocket-kb/photos.zip --subset
      crowded --tokens 16 --half-kept

      skipqa theory fidelity --questions val.jsonl --images val.zip --results benchmarks/results
    """
    from dataclasses import asdict

    from skipqa.claims.fidelity import saliency_fidelity
    from skipqa.claims.token_worth import TokenAblation, measure_question
    from skipqa.evaluation import harness
    from skipqa.pipeline import load
    from skipqa.tasks import jsonl
    from skipqa.tasks.photos import Photos

    photos = Photos(images)
    rows, bad = jsonl.read(questions, photos)
    if subset is not None:
        rows = [row for row in rows if subset in row.subsets]
        if not rows:
            raise UserError(f"{questions} has no question in a subset {subset!r}")
    rows = harness.draw(rows, limit, seed)
    prepare_process()
    with working("reading the models") as report:
        pipeline = load(
            preset,
            index=index,
            components=components,
            trained=not untrained,
            weights=weights,
            report=report,
        )
    measured, ablation = [], TokenAblation(proxy, tokens, seed, half_kept)
    with counting() as bar:
        for done, row in enumerate(rows):
            bar("asking without each token", done, len(rows))
            correct = max(row.answers, key=lambda text: row.answers[text])
            try:
                photo = photos.open(row.image)
                measured.append(measure_question(pipeline, photo, row.question, correct, ablation))
            except UserError as error:  # a damaged photo, a question over the limit
                bad.append(f"{row.place}: {row.image}: {error}")
        bar("asking without each token", len(rows), len(rows))
    for line in bad:
        err.print(f"skipped: {line}", highlight=False, soft_wrap=True)
    found = saliency_fidelity((one.saliency, one.worth) for one in measured)
    said = {
        "proxy": proxy,
        "tokens": tokens,
        "half_kept": half_kept,
        "subset": subset,
        "seed": seed,
        **asdict(found),
        "score_gap": sum(one.gap for one in measured) / len(measured),
        "available": pipeline.config.encode.num_tokens,
        "bad_rows": bad,
    }
    if results is not None:
        from skipqa.costs.environment import write_results

        path = write_results(said, "fidelity", results, pipeline.components.checksums())
        err.print(f"written to {path}", soft_wrap=True)
    if json:
        print_json(said)
        return
    from rich.table import Table

    table = Table(
        "", "here", "the paper", title=f"{plural(found.num_questions, 'question')}, {proxy}"
    )
    table.add_row("eta, as scored", f"{found.eta:.3f}", "at most 0.018")
    table.add_row("eta, calibrated", f"{found.eta_calibrated:.3f}", "")
    table.add_row("Spearman", f"{found.spearman:.3f}", "at least 0.76")
    table.add_row("tokens worth anything", f"{100 * found.worth_something:.1f} %", "")
    table.add_row("score gap", f"{said['score_gap']:.4f}", "")
    out.print(table)


@app.command("quantities")
def quantities(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Runs of skip, dense and retentions of skip.", show_default=False),
    ],
    epsilon: Annotated[float, typer.Option("--eps", help="Information that may be lost.")] = 0.05,
    results: Annotated[
        Path | None, typer.Option(help="Folder with the results of `skipqa theory fidelity`.")
    ] = None,
    json: Json = False,
) -> None:
    """The quantities of the paper's theorems, as runs have them.

    Examples:

      skipqa theory quantities benchmarks/runs/pocket-kb-val --results benchmarks/results
    """
    from dataclasses import asdict

    from skipqa.claims.quantities import (
        F1_OF_THE_LEMMA,
        NOTES,
        bound_constant,
        least_recall,
        trade_off,
    )
    from skipqa.evaluation.reports.runs import read_runs
    from skipqa.evaluation.results import newest

    measured = [found for one in read_runs(folders) if (found := trade_off(one)) is not None]
    if not measured:
        raise UserError("there are no runs of skip and dense over the same questions")
    constants = []
    if results is not None:
        fidelity = newest(results, "fidelity")["results"]
        constants = [
            bound_constant(
                one.lipschitz,
                fidelity["eta_calibrated"],
                fidelity["score_gap"],
                fidelity["available"],
                epsilon,
            )
            for one in measured
            if one.lipschitz and fidelity["score_gap"] > 0
        ]
    if json:
        print_json(
            {
                "trade_off": [{**asdict(one), "allowed": one.allowed} for one in measured],
                "bound": [asdict(one) for one in constants],
                "least_recall": least_recall(F1_OF_THE_LEMMA),
                "notes": NOTES,
            }
        )
        return
    from rich.table import Table

    table = Table("Theorem C.1", *(one.title for one in measured))
    rows = {
        "questions": [f"{one.questions:,}" for one in measured],
        "epsilon_v, of the box dropped": [_percent(one.epsilon_v) for one in measured],
        "delta_r, gold not retrieved": [_percent(one.delta_r) for one in measured],
        "gold kept by the verifier": [_percent(one.verifier_recall) for one in measured],
        "accuracy that may be lost": [_percent(one.allowed) for one in measured],
        "accuracy that is lost": [_percent(one.lost) for one in measured],
        "mean degree": [f"{one.degree:.2f}" for one in measured],
        "FLOPs, times fewer": [f"{one.times_fewer_flops:.2f}" for one in measured],
        "L, of accuracy over retention": [
            "–" if one.lipschitz is None else f"{one.lipschitz:.2f}" for one in measured
        ],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    out.print(table)
    for one in constants:
        asks = "everything: vacuous" if one.vacuous else f"{one.tokens} of {one.available}"
        out.print(
            f"L {one.lipschitz:.2f}, eta {one.eta:.4f} (calibrated), gap {one.gap:.4f}: "
            f"C = {one.C:.1f}, V' = {asks}"
        )
    for note in NOTES:
        out.print(f"• {note}", style="dim")


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"
