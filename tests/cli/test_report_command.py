import pytest
import typer
from typer.testing import CliRunner

from fedstill.cli.report import report
from fedstill.core.errors import FedstillError
from tests.report.runfolders import write_run


@pytest.fixture
def app():
    app = typer.Typer()
    app.command()(report)
    return app


def test_writes_the_page_and_says_where(tmp_path, app):
    write_run(tmp_path / "a", rounds=2)
    result = CliRunner().invoke(app, [str(tmp_path / "a"), "--out", str(tmp_path / "x.html")])
    assert result.exit_code == 0, result.output
    assert result.output.strip() == f"report: {tmp_path / 'x.html'}"
    assert (tmp_path / "x.html").exists()


def test_opens_the_browser_when_asked(tmp_path, app, monkeypatch):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    write_run(tmp_path, rounds=2)
    CliRunner().invoke(app, [str(tmp_path), "--open"])
    assert opened == [(tmp_path / "report.html").as_uri()]


def test_mistakes_are_errors_of_the_user(tmp_path, app):
    assert isinstance(CliRunner().invoke(app, [str(tmp_path / "nowhere")]).exception, FedstillError)
    result = CliRunner().invoke(app, [str(tmp_path), "--live", "--out", "x.html"])
    assert isinstance(result.exception, FedstillError)


def test_live_says_its_address_and_stops_with_the_interrupt(tmp_path, app, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", interrupted)
    result = CliRunner().invoke(app, [str(tmp_path), "--live"])
    assert result.exit_code == 0, result.output
    assert "http://127.0.0.1:" in result.output
    assert "stopped" in result.output
