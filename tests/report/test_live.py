import http.client
import json
import threading
from contextlib import contextmanager

import pytest

from fedstill.core.errors import FedstillError
from fedstill.report.live import live_server
from tests.report.runfolders import write_run


@contextmanager
def serving(folders):
    server = live_server(folders)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def get(port, path="/", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def test_data_are_sent_again_only_when_they_grew(tmp_path):
    write_run(tmp_path, rounds=3)
    with serving([tmp_path]) as port:
        status, body, headers = get(port, "/data.json")
        assert status == 200
        assert json.loads(body)["runs"][0]["round"] == [1, 2, 3]
        assert get(port, "/data.json", **{"If-None-Match": headers["ETag"]})[0] == 304
        with (tmp_path / "history.jsonl").open("a") as history:
            history.write('{"round": 4, "accuracy": 0.5}\n')
        status, body, _ = get(port, "/data.json", **{"If-None-Match": headers["ETag"]})
        assert status == 200
        assert json.loads(body)["runs"][0]["round"] == [1, 2, 3, 4]


def test_other_hosts_are_refused(tmp_path):
    write_run(tmp_path, rounds=1)
    with serving([tmp_path]) as port:
        assert get(port)[0] == 200
        assert get(port, Host=f"localhost:{port}")[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
            status, body, _ = get(port, "/data.json", Host=host)
            assert status == 403
            assert "round" not in body
        assert get(port, "/../../etc/passwd")[0] == 404


def test_only_this_machine_can_connect(tmp_path):
    server = live_server([tmp_path])
    assert server.server_address[0] == "127.0.0.1"
    server.server_close()


def test_a_run_that_has_not_begun_can_be_followed(tmp_path):
    with serving([tmp_path]) as port:
        assert json.loads(get(port, "/data.json")[1])["runs"] == []
        assert get(port)[0] == 200
        write_run(tmp_path / "run", rounds=1)
        assert len(json.loads(get(port, "/data.json")[1])["runs"]) == 1


def test_a_port_in_use_and_a_missing_folder_are_clear_lines(tmp_path):
    with pytest.raises(FedstillError, match="no such folder"):
        live_server([tmp_path / "nowhere"])
    first = live_server([tmp_path])
    with pytest.raises(FedstillError, match="cannot listen"):
        live_server([tmp_path], first.server_port)
    first.server_close()
