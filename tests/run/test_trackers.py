import sys

import pytest

from fedstill.core.errors import FedstillError
from fedstill.run.trackers import numbers, tracker

LINES = [
    {
        "round": r,
        "accuracy": 0.1 + r / 3,
        "domains": {"embedded:mnist": 0.2 + r / 7},
        "merged_accuracy": None,
        "bytes_up": 2**24 + r,
        "seconds": {"train": 1.5},
        "clients": ["a", "b"],
        "dropped": [{"client": "b", "reason": "late"}],
    }
    for r in (1, 2, 3)
]
SUMMARY = {"algorithm": "feddf", "rounds": 3, "final_accuracy": 1.1, "rounds_to": {"0.5": 2, "0.9": None}}
EXPECTED = {name: [dict(numbers(line))[name] for line in LINES] for name, _ in numbers(LINES[0])}


def test_tensorboard_has_the_numbers_of_the_history(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for part in (LINES[:2], LINES[2:]):  # the second part as after a resume
        following = tracker("tensorboard", tmp_path)
        for line in part:
            following.round(line)
        following.finished(SUMMARY)
        following.closed()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={accumulator.TENSORS: 0})
    events.Reload()
    from tensorboard.util.tensor_util import make_ndarray

    for name, values in EXPECTED.items():
        found = events.Tensors(name)
        assert [e.step for e in found] == [1, 2, 3]
        assert [float(make_ndarray(e.tensor_proto)) for e in found] == pytest.approx(values, rel=1e-12)


def test_mlflow_has_the_numbers_of_the_history(tmp_path):
    pytest.importorskip("mlflow")
    for part in (LINES[:2], LINES[2:]):  # the second part continues the same run, as after a resume
        following = tracker("mlflow", tmp_path)
        # a run writes its configuration after its trackers have started
        (tmp_path / "config.toml").write_text('seed = 4\n[algorithm]\nname = "feddf"\n')
        for line in part:
            following.round(line)
        following.finished(SUMMARY)
        following.closed()
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    runs = client.search_runs([client.get_experiment_by_name("fedstill").experiment_id])
    assert len(runs) == 1
    assert runs[0].data.params == {"seed": "4", "algorithm.name": "feddf"}
    assert runs[0].info.status == "FINISHED"
    assert runs[0].data.metrics["summary/final_accuracy"] == 1.1
    for name, values in EXPECTED.items():
        found = client.get_metric_history(runs[0].info.run_id, name.replace(":", "_"))
        assert [(m.step, m.value) for m in found] == list(zip([1, 2, 3], values, strict=True))


def test_nothing_is_written_outside_the_run_folder(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    elsewhere = tmp_path / "cwd"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    following = tracker("mlflow", tmp_path / "run")
    following.round(LINES[0])
    following.closed()
    assert list(elsewhere.iterdir()) == []


def test_a_tracker_that_is_not_installed_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(FedstillError, match=r"pip install 'fedstill\[tensorboard\]'"):
        tracker("tensorboard", tmp_path)


def test_an_unknown_tracker_is_told_with_the_nearest_name(tmp_path):
    with pytest.raises(FedstillError, match="did you mean 'mlflow'"):
        tracker("mlfow", tmp_path)
