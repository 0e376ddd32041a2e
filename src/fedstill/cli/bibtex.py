"""How to cite the papers behind the systems, from ``references.bib``."""

from __future__ import annotations

import re
from importlib.resources import files

from fedstill.core.errors import FedstillError

__all__ = ["bibtex", "entries"]


def entries() -> dict[str, str]:
    """The BibTeX entry of each system, by its name.

    >>> entries()["feddf"].splitlines()[0]
    '@inproceedings{lin2020ensemble,'
    """
    text = files("fedstill.cli").joinpath("references.bib").read_text(encoding="utf-8")
    found = re.findall(r"^% systems: ([^\n]*)\n(@.*?^\})$", text, flags=re.MULTILINE | re.DOTALL)
    return {name: entry for names, entry in found for name in names.split(", ")}


def bibtex(names: str) -> str:
    """The entries of a comma-separated list of systems, each paper once; ``all`` stands for all systems.

    >>> bibtex("fedd3a,ceiling").count("@article")
    1
    >>> bibtex("fedxyz")
    Traceback (most recent call last):
    fedstill.core.errors.FedstillError: no BibTeX entry for 'fedxyz'; `fedstill algorithms` names each system's paper
    """
    known = entries()
    wanted = list(known) if names == "all" else [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise FedstillError(f"no BibTeX entry for '{name}'; `fedstill algorithms` names each system's paper")
    return "\n\n".join(dict.fromkeys(known[name] for name in wanted))
