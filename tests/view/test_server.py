"""Who may read what: only with the token, only under our own name, only below the folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.view.conftest import Visitor, record_run
from workbench.view import Pages, ViewError, ViewServer

Visit = Callable[[Path], Visitor]


def test_without_the_token_nothing_is_answered(tmp_path: Path, visit: Visit) -> None:
    visitor, other = visit(tmp_path), visit(tmp_path)
    assert visitor.server.token != other.server.token
    assert visitor.server.address == f"http://127.0.0.1:{visitor.server.server_port}/{visitor.server.token}/"
    for path in ("/", "/index.html", "/wrong/", f"/{visitor.server.token[:-1]}/", f"/{visitor.server.token}x/"):
        status, text = visitor.get(path, token=False)
        assert status == 403, path
        assert visitor.server.token not in text
    assert visitor.get("")[0] == 200
    assert len(visitor.server.token) >= 32


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil:{port}"]
)
def test_a_name_that_leads_here_is_refused(tmp_path: Path, visit: Visit, host: str) -> None:
    visitor = visit(tmp_path)
    assert visitor.get("", host=host.format(port=visitor.server.server_port))[0] == 403
    assert visitor.get("", host=f"localhost:{visitor.server.server_port}")[0] == 200


def test_nothing_outside_the_folder_is_read(tmp_path: Path, visit: Visit) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    record_run(outside, "secret")
    (inside / "link").symlink_to(outside, target_is_directory=True)
    (inside / "note.txt").write_text("words")
    visitor = visit(inside)
    tried = ["../outside/secret/", "%2e%2e/outside/secret/", "..%2foutside%2fsecret/", "x/../../outside/"]
    tried += ["link/secret/", f"{outside}/secret/", f"%2F{str(outside)[1:]}/secret/", "note.txt/", "%00/"]
    for path in tried:
        status, text = visitor.get(path)
        assert status == 404, path
        assert "secret" not in text
    status, text = visitor.get("?part=overlay&run=it%7C../outside/secret")
    assert (status, "no such run" in text) == (422, True)


@pytest.mark.parametrize(("error", "said"), [(BrokenPipeError(), False), (RuntimeError("a mistake"), True)])
def test_a_browser_that_leaves_in_the_middle_of_an_answer_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: Exception, said: bool
) -> None:
    with ViewServer(Pages(tmp_path)) as server:
        try:
            raise error
        except type(error):
            server.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) is said


def test_answers_stay_in_the_browser_that_asked(tmp_path: Path, visit: Visit) -> None:
    visitor = visit(tmp_path)
    _, page = visitor.get("")
    wanted = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}
    assert wanted.items() <= visitor.headers.items()
    assert "default-src 'none'" in page
    assert "connect-src 'self'" in page  # its quotes are not escaped


def test_a_folder_without_its_slash_leads_to_the_one_with_it(tmp_path: Path, visit: Visit) -> None:
    record_run(tmp_path, "a")
    visitor = visit(tmp_path)
    assert visitor.get("a?x=1")[0] == 308
    assert visitor.headers["Location"] == f"/{visitor.server.token}/a/?x=1"


@pytest.mark.parametrize(("name", "said"), [("missing", "there is no such folder"), ("file.txt", "it is a file")])
def test_what_does_not_exist_is_said(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file.txt").touch()
    with pytest.raises(ViewError, match=f"{name}: {said}; name a study, a run directory, or a folder that holds some"):
        Pages(tmp_path / name)


def test_a_storage_needs_a_study(tmp_path: Path) -> None:
    with pytest.raises(ViewError, match="--storage goes with a study"):
        Pages(tmp_path, storage="sqlite:///x.db")
