"""The papers' tables and figures as commands: each is a study with a protocol at full scale and one for a small machine.

A study is a function from a :class:`Plan` to cells, registered by name in :data:`STUDIES`. It defines the runs; this package runs
them (resumably, one folder per run), puts the paper's figures beside ours and writes the table. Importing it does not import
torch.
"""

from fedstill.reproduce.catalogue import STUDIES, Study, Tiny, studies, study
from fedstill.reproduce.plan import Cell, Job, Plan, Published, Scale, cell, published
from fedstill.reproduce.running import Estimate, Result, Run, estimate, reproduce, runs_of
from fedstill.reproduce.tables import cell_texts, grid, table

__all__ = [
    "STUDIES",
    "Cell",
    "Estimate",
    "Job",
    "Plan",
    "Published",
    "Result",
    "Run",
    "Scale",
    "Study",
    "Tiny",
    "cell",
    "cell_texts",
    "estimate",
    "grid",
    "published",
    "reproduce",
    "runs_of",
    "studies",
    "study",
    "table",
]
