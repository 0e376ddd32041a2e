"""The papers' tables and figures as commands: each a study with a protocol at full scale and one that runs on a small machine.

A study is a function from a :class:`Plan` to cells, found by name in :data:`STUDIES`; it says what it runs, this package runs it
(resumably, a folder a run), puts the paper's figures beside ours and writes the table. Importing this package brings no torch.
"""

from fedstill.reproduce.catalogue import STUDIES, Study, studies, study
from fedstill.reproduce.plan import Cell, Plan, Published, Scale, cell, published
from fedstill.reproduce.running import Run, reproduce, runs_of
from fedstill.reproduce.tables import cell_texts, grid, table

__all__ = [
    "STUDIES",
    "Cell",
    "Plan",
    "Published",
    "Run",
    "Scale",
    "Study",
    "cell",
    "cell_texts",
    "grid",
    "published",
    "reproduce",
    "runs_of",
    "studies",
    "study",
    "table",
]
