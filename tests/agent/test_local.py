"""The local socket: one daemon a directory, requests as lines of JSON."""

import asyncio
import errno
import json
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent import local
from agent.errors import UserError


async def _status(request: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"echo": request.get("word")}


async def _no(request: Mapping[str, Any]) -> Mapping[str, Any]:
    raise UserError("not today")


METHODS: Mapping[str, local.Method] = {"status": _status, "no": _no}


def ask(path: Path, method: str, **arguments: Any) -> dict[str, Any]:
    """A call against a server of METHODS that lives for just that call."""

    async def work() -> dict[str, Any]:
        async with local.serve(path, METHODS):
            return await asyncio.to_thread(lambda: local.call(path, method, 5.0, **arguments))

    return asyncio.run(work())


def say(path: Path, data: bytes) -> list[dict[str, Any]]:
    """The answers to raw bytes."""

    async def work() -> bytes:
        async with local.serve(path, METHODS):
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(data)
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(), 5)
            writer.close()
            return answer

    return [json.loads(line) for line in asyncio.run(work()).splitlines()]


def test_a_socket_that_is_not_open_to_the_caller_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(socket.socket):
        def connect(self, address: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("socket.socket", Closed)
    with pytest.raises(UserError, match=r"socket .*/s is not open to you: Permission denied\n  run as bcd's user"):
        local.call(tmp_path / "s", "status", 1.0)


def test_says_when_others_may_enter_the_data_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with local.only_daemon(tmp_path / "mine"):
        assert not caplog.records
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700
    (tmp_path / "mine").chmod(0o750)
    with local.only_daemon(tmp_path / "mine"):
        assert "its mode is 750, and should be 700" in caplog.text


def test_a_full_disk_keeps_no_daemon_from_its_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with local.only_daemon(tmp_path):
        monkeypatch.undo()
        with pytest.raises(UserError, match="another bcd already runs"), local.only_daemon(tmp_path):
            pass


def test_answers_a_method_with_its_arguments(tmp_path: Path) -> None:
    assert ask(tmp_path / "s", "status", word="x") == {"echo": "x"}


def test_a_no_of_the_daemon_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the running bcd said: not today"):
        ask(tmp_path / "s", "no")
    with pytest.raises(UserError, match="unknown method 'x'; there are no, status"):
        ask(tmp_path / "s", "x")


def test_every_line_is_answered_in_order_and_a_wrong_one_named(tmp_path: Path) -> None:
    lines = b'{"method": "status", "word": 1}\nnonsense\n[]\n{"method": 7}\n{"method": "status", "word": 2}\n'
    answers = say(tmp_path / "s", lines)
    assert [sorted(answer) for answer in answers] == [["result"], ["error"], ["error"], ["error"], ["result"]]
    assert "not JSON" in answers[1]["error"]
    assert answers[4] == {"result": {"echo": 2}}


def test_a_request_without_end_is_refused(tmp_path: Path) -> None:
    answers = say(tmp_path / "s", b"x" * (local.LINE_LIMIT * 2))
    assert answers == [{"error": f"the request is longer than {local.LINE_LIMIT} bytes"}]


def test_the_socket_is_for_owner_and_group_and_goes_with_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "s"

    async def work() -> int:
        async with local.serve(path, METHODS):
            return stat.S_IMODE(path.stat().st_mode)

    assert asyncio.run(work()) == 0o660
    assert not path.exists()


def test_a_stale_socket_is_replaced_and_a_served_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert ask(path, "status") == {"echo": None}
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        with pytest.raises(UserError, match="cannot listen on the local socket"):
            ask(path, "status")


def test_a_file_in_the_socket_s_place_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("precious")
    with pytest.raises(UserError, match="cannot listen on the local socket"):
        ask(path, "status")
    assert path.read_text() == "precious"


def test_a_path_longer_than_an_address_works(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 60) / ("e" * 60)
    folder.mkdir(parents=True)
    assert ask(folder / "bcd.sock", "status", word="far") == {"echo": "far"}


def test_no_daemon_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no bcd answers on .*\n  start it with `bcd run`"):
        local.call(tmp_path / "s", "status", 1.0)


@pytest.mark.parametrize("said", [b"", b"nonsense\n", b"[]\n", b"{}\n"])
def test_what_is_no_daemon_is_named(tmp_path: Path, said: bytes) -> None:
    path = tmp_path / "s"

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(said)
        writer.close()

    async def work() -> None:
        async with await asyncio.start_unix_server(other, str(path)):
            await asyncio.to_thread(local.call, path, "status", 5.0)

    with pytest.raises(UserError, match="the running bcd"):
        asyncio.run(work())


def test_a_daemon_that_does_not_answer_is_told_after_its_time(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        with pytest.raises(UserError, match=r"did not answer 'status' .* within 0.2 s"):
            local.call(tmp_path / "s", "status", 0.2)


def test_a_second_daemon_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with local.only_daemon(data):
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        with pytest.raises(UserError, match=r"another bcd \(process \d+\) already runs"), local.only_daemon(data):
            pass
    with local.only_daemon(data):
        pass


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot use the data directory"), local.only_daemon(tmp_path / "file" / "data"):
        pass
