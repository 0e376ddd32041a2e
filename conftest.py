"""Doctests of modules that need an optional extra are collected only where it is installed."""

from importlib.util import find_spec

collect_ignore: list[str] = []
if find_spec("flwr") is None:
    collect_ignore += ["src/fedstill/engine/flower.py", "src/fedstill/engine/loopback.py", "src/fedstill/flower.py"]
