"""``fedstill.run`` as a Python program has it: its signature and help, what it shows, and errors in Python's words."""

from __future__ import annotations

import inspect
import io
import pydoc
import time

import numpy as np
import pytest
import torch

import fedstill
from fedstill import api
from fedstill.cli import progress as bars
from fedstill.core import console as consoles
from fedstill.run import effort, show
from fedstill.run.listener import Listener
from fedstill.run.loop import run
from fedstill.run.pulse import Pulse
from fedstill.task import Task
from tests.conftest import tiny_tree


def test_it_has_a_signature_and_help():
    signature = inspect.signature(fedstill.run)
    assert list(signature.parameters)[:2] == ["what", "out"]
    assert {"clients", "pool", "settings", "resume", "progress"} <= signature.parameters.keys()
    text = pydoc.render_doc(fedstill.run, renderer=pydoc.plaintext)
    assert "what: the name of a preset" in text
    assert "resume: continue from the last checkpoint" in text
    with pytest.raises(TypeError, match="unexpected keyword argument 'round'"):
        fedstill.run("demo", round=3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "needs a preset, a TOML file or a dictionary"),
        ({"what": 3}, "not int"),
        ({"pool": np.zeros((2, 2))}, "need clients"),
        ({"clients": [1]}, "not list"),
        ({"what": "demo", "settings": "rounds=1"}, "not the string"),
    ],
)
def test_a_wrong_kind_of_argument_is_a_type_error(arguments, said):
    with pytest.raises(TypeError, match=said):
        fedstill.run(**arguments)


def test_errors_do_not_speak_of_the_command_line(tmp_path):
    with pytest.raises(fedstill.FedstillError) as error:
        fedstill.run({"data": {"root": str(tmp_path / "none"), "domains": ["a"]}}, tmp_path / "out")
    assert "--set" not in str(error.value)
    assert "data.root" in str(error.value)
    fedstill.run(tiny_tree(rounds=1), tmp_path / "run")
    with pytest.raises(fedstill.FedstillError, match=r"continue it \(resume\)") as error:
        fedstill.run(tiny_tree(rounds=1), tmp_path / "run")
    assert "--" not in str(error.value)


def test_settings_are_values_by_key(tmp_path):
    found = fedstill.run(tiny_tree(), tmp_path, settings={"rounds": 1, "local": {"steps": 2}, "data.domains": ["embedded:mnist"]})
    assert (len(found.history), found.task.config.local.steps, list(found.task.tests)) == (1, 2, ["mnist"])


def test_warnings_are_pythons_where_nothing_is_shown(tmp_path):
    with pytest.warns(UserWarning, match="there is no run in"):
        fedstill.run(tiny_tree(rounds=1), tmp_path, resume=True)
    tree = tiny_tree(rounds=1, algorithm={"name": "fedprox", "mu": 0.3})
    with pytest.warns(UserWarning, match="fedavg: does not use mu") as warned:
        fedstill.run(tree, tmp_path / "other", settings={"algorithm.name": "fedavg"})
    assert warned[0].filename == __file__


@pytest.fixture
def lines(monkeypatch):
    """What is written where there is no terminal."""
    found = io.StringIO()
    console = consoles.Console(file=found, width=200, highlight=False)
    monkeypatch.setattr(show, "console", console)
    return found


def test_progress_is_lines_where_it_is_asked_for(tmp_path, lines):
    fedstill.run(tiny_tree(rounds=1), tmp_path, progress=True)
    said = lines.getvalue()
    assert "· 2 clients · 1 round · " in said
    assert "round   1/1  accuracy" in said


def test_nothing_is_shown_to_a_program(tmp_path, lines):
    fedstill.run(tiny_tree(rounds=1), tmp_path)
    assert lines.getvalue() == ""


# -- how long ------------------------------------------------------------------------------------------------------------------


def test_steps_are_counted(tiny):
    distillation = {"epochs": 3, "batch_size": 50}
    config = tiny(
        data={"server": "embedded:rotated", "limit": 120},
        clients={"per_domain": 2, "per_round": 2},
        local={"epochs": 2, "batch_size": 25},
        algorithm={"name": "feddf", "distillation": distillation},
    )
    found = effort.effort_of(Task(config), rounds=1)
    assert (found.clients, found.train, found.distil) == (2, 2 * 2 * 3, 3 * 3)  # 60 samples a client, a pool of 120
    assert found.seconds is None  # so few are not worth a trial
    long = effort.effort_of(Task(config), rounds=100)
    assert long.seconds > 0
    assert "12 steps of training by 2 clients, 9 steps of distillation; 100 rounds take roughly" in str(long)


def test_to_try_a_step_changes_nothing(tiny, tmp_path):
    config = tiny(local={"steps": 40}, model={"name": "cnn-small"}, data={"image_size": 16})

    class Measured(Listener):
        def started(self, task, rounds_done):
            assert effort.effort_of(task, config.rounds).seconds

    run(config, tmp_path / "measured", listeners=[Measured()])
    run(config, tmp_path / "plain")
    assert (tmp_path / "measured/model.safetensors").read_bytes() == (tmp_path / "plain/model.safetensors").read_bytes()


def test_a_long_run_says_beforehand_how_long(tiny, tmp_path, lines, monkeypatch):
    monkeypatch.setattr(show, "LONG", 0.0)
    monkeypatch.setattr(effort, "FEW", 0)
    run(tiny(), tmp_path, listeners=[show.Shown()])
    said = lines.getvalue()
    assert "a round: 8 steps of training by 2 clients; 2 rounds take roughly" in said
    assert said.index("take roughly") < said.index("round   1/2")


def test_the_bar_says_how_long_is_left(monkeypatch):
    shown, now = show.Shown(), time.monotonic()
    shown.total, shown.done, shown.clock, shown.ended = 10, 2, now - 200, now
    assert shown._left() == "about 13 min left"
    shown.done, shown.begun = 2, 2  # resumed: no round has ended yet, and nothing was tried out
    assert shown._left() == ""
    shown.expected = 500.0
    assert shown._left() == "about 5 min left"


def test_a_line_comes_when_nothing_happens_for_a_while(lines, monkeypatch):
    monkeypatch.setattr("fedstill.run.pulse.QUIET", 0.05)
    shown = show.Shown()
    shown.preparing()
    try:
        for wanted in ("reading the data", "round   3/9  train 1/4"):
            deadline = time.monotonic() + 20
            while wanted not in lines.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
            assert wanted in lines.getvalue()
            shown.total, shown.done = 9, 2
            shown.progress("train", 1, 4)
    finally:
        shown.closed()
    before = lines.getvalue()
    time.sleep(0.15)
    assert lines.getvalue() == before


def heard(said, wanted):
    deadline = time.monotonic() + 20
    while wanted not in said() and time.monotonic() < deadline:
        time.sleep(0.01)
    return wanted in said()


def test_a_line_comes_while_a_comparison_is_planned_and_its_page_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("fedstill.run.pulse.QUIET", 0.05)
    said = []
    real_plan, real_page = api.plan, api.build_page

    def plan(*given):
        assert heard(lambda: "\n".join(said), "checking the configurations, 1 s so far")
        return real_plan(*given)

    def page(*given):
        assert heard(lambda: "\n".join(said), "writing the table and the page, 1 s so far")
        return real_page(*given)

    monkeypatch.setattr(api, "plan", plan)
    monkeypatch.setattr(api, "build_page", page)
    fedstill.compare(tiny_tree(rounds=1), ["fedavg"], seeds=[0], out=tmp_path, say=said.append)


def test_a_line_comes_while_bundles_are_fused(lines, monkeypatch):
    for place in (consoles, bars):
        monkeypatch.setattr(place, "console", show.console)
    monkeypatch.setattr("fedstill.run.pulse.QUIET", 0.05)
    with bars.progress("reading the bundles") as told:
        assert heard(lines.getvalue, "reading the bundles, 1 s so far")
        told("student", 1, 100)
        assert heard(lines.getvalue, "student 1/100, 1 s so far")
        told("student", 25, 100)
        assert heard(lines.getvalue, "still working, 1 s so far")
    assert lines.getvalue().count("student 25/100") == 1
    before = lines.getvalue()
    time.sleep(0.15)
    assert lines.getvalue() == before


def test_a_pulse_is_quiet_while_others_speak():
    heard = []
    pulse = Pulse(lambda: heard.append(1), quiet=60)
    pulse.start()
    pulse.stop()
    assert not heard


# -- in a notebook -------------------------------------------------------------------------------------------------------------

CELL = """
import fedstill
result = fedstill.run("demo", "run", settings={"rounds": 2, "algorithm.name": "fedavg", "data.limit": 60, "data.test_limit": 20})
print(result.accuracy is not None, len(result.predict(result.task.tests["mnist"].x)))
result.confusion("mnist")
"""


def test_a_real_notebook_has_a_bar_and_a_table(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = notebook.cells[0].outputs
    shown = [output["data"].get("text/html", "") for output in outputs if "data" in output]
    bars = [text for text in shown if "<progress" in text]
    assert len(bars) == 1  # replaced in place, not one after another
    assert 'value="2" max="2"' in bars[0]
    assert "accuracy" in bars[0]
    assert any("<table>" in text and "truth" in text for text in shown)
    assert any(output.get("name") == "stdout" and output["text"].startswith("True 20") for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)


def test_results_can_be_shown(tiny, tmp_path):
    found = run(tiny(rounds=1), tmp_path)
    assert len(repr(found)) < 1000  # without its tensors
    assert torch.equal(found.model(torch.zeros(1, 1, 8, 8)), found.model(torch.zeros(1, 1, 8, 8)))
