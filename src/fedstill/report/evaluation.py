"""The page of ``fedstill evaluate``: how good a model is on labelled data, class by class. It needs no script."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from fedstill.core.console import counted
from fedstill.models.confusion import Confusion
from fedstill.report.shell import page_shell, row

__all__ = ["evaluation_page"]

MOST_CLASSES = 100  # of a matrix on the page
MOST_MISTAKES = 20

STYLE = """
.matrix th, .matrix td { padding: 0.3rem 0.5rem; text-align: center; border: 1px solid var(--grid); }
.matrix th:first-child { text-align: left; }
"""


def evaluation_page(model: str, found: Mapping[str, Confusion]) -> str:
    """The page of a model's figures on each of several sources of data, as HTML text.

    >>> import torch
    >>> figures = Confusion(("cat", "<dog>"), torch.tensor([[3, 1], [0, 4]]))
    >>> page = evaluation_page("runs/pets", {"photos": figures})
    >>> "<title>runs/pets, evaluated</title>" in page, "87.5 % of 8 samples" in page, "<dog>" in page
    (True, True, False)
    """
    body = "\n".join(_section(source, one) for source, one in found.items())
    return page_shell(f"{model}, evaluated", body, STYLE)


def _section(source: str, found: Confusion) -> str:
    accuracy = "no samples" if found.accuracy is None else f"{100 * found.accuracy:.1f} % of {counted(found.samples, 'sample')}"
    return f"""<section>
<h2>{escape(source)}: {accuracy}</h2>
<h3>By class</h3>
<div class="scroll" tabindex="0" role="region" aria-label="Figures by class">
<table>{row("th", ["class", "samples", "precision %", "recall %", "F1 %"])}
{"".join(row("td", cells) for cells in found.rows())}</table></div>
<h3>Confusion matrix</h3>
{_matrix(found)}
</section>"""


def _matrix(found: Confusion) -> str:
    """Counts, coloured by their share of the class: correct ones blue and errors orange, as on the page of runs."""
    if len(found.classes) > MOST_CLASSES:
        rows = [[truth, taken, f"{count:,}"] for truth, taken, count in found.worst[:MOST_MISTAKES]]
        lead = f"<p class='why'>There are too many classes for a matrix. The {counted(len(rows), 'most frequent mistake')}:</p>"
        return f"{lead}<table>{row('th', ['is', 'predicted as', 'samples'])}{''.join(row('td', cells) for cells in rows)}</table>"
    lines = [row("th", ["is \\ predicted as", *found.classes])]
    for truth, (name, counts) in enumerate(zip(found.classes, found.matrix.tolist(), strict=True)):
        cells = "".join(_cell(count, sum(counts), taken == truth) for taken, count in enumerate(counts))
        lines.append(f"<tr><th scope='row'>{escape(name)}</th>{cells}</tr>\n")
    return (
        "<p class='why'>Samples of each class (down) by predicted class (across). The stronger the colour, the larger the share "
        "of the class: blue is correct, orange wrong.</p>\n"
        "<div class='scroll' tabindex='0' role='region' aria-label='Confusion matrix'>"
        f"<table class='matrix'>{''.join(lines)}</table></div>"
    )


def _cell(count: int, of: int, right: bool) -> str:
    share = 100 * count / of if of else 0.0
    colour = f"color-mix(in srgb, var({'--accent' if right else '--note-line'}) {min(60.0, 8 + share * 0.52):.0f}%, transparent)"
    return f'<td title="{share:.1f} % of the class" style="background: {colour}">{count:,}</td>' if count else "<td></td>"
