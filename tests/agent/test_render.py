"""What a person reads: everything that is there, nothing that is not."""

import io
import re
from datetime import UTC, datetime

import pytest

from agent.render import Block, draw, plain, section_blocks, since_words, size_words, status_blocks, table

STATUS = {
    "nodeId": "node_1",
    "joined": True,
    "identityError": "",
    "certificate": {"notAfter": "2026-03-31T12:00:00Z", "remaining": 0.75, "renewalError": ""},
    "bootId": "boot-1",
    "version": "0.1.0",
    "pid": 7,
    "server": "127.0.0.1:7443",
    "session": "connected",
    "sessionSince": "2026-03-01T12:00:00.000Z",
    "sessionError": "",
    "epoch": 3,
    "digest": "abc",
    "applied": True,
    "lastAnswer": "applied",
    "collectedAt": "2026-03-01T10:00:00.000Z",
    "trigger": "boot",
    "collecting": False,
    "abandonedWorkers": 0,
    "sections": [{"name": "os", "hash": "f" * 64, "bytes": 2048, "collectedAt": "2026-03-01T10:00:00.000Z"}],
    "missing": [{"name": "gpus", "error": "settling", "detail": "1 of 8 GPUs answer", "collectedAt": "2026-03-01T12:00:30.000Z"}],
    "devices": [],
    "holds": [],
    "commands": [],
    "conditions": [],
    "kernelLog": {"available": True, "reason": None, "lostRecords": 0, "unattributed": [], "overflow": 0, "notSaved": None},
}
NOW = datetime(2026, 3, 1, 12, 1, 0, tzinfo=UTC)


def test_a_section_s_fields_come_first_and_its_lists_as_tables() -> None:
    message = {
        "driver": {"moduleVersion": "550.90.07", "confidentialCompute": False},
        "gpus": [
            {"index": 0, "name": "H100", "vramBytes": "85899345920", "mig": {"current": True}},
            {"name": "H100", "state": "lost"},
        ],
        "unreadable": [],
    }
    text = "\n".join(plain(section_blocks("gpus", message, "0123456789ab")))
    assert text == (
        "gpus  0123456789ab\n"
        "  driver.moduleVersion        550.90.07\n"
        "  driver.confidentialCompute  no\n"
        "\n"
        "gpus.gpus\n"
        "  index  name  vramBytes  state  mig.current\n"
        "  0      H100  80 GiB            yes\n"
        "         H100             lost"
    )


def test_what_could_not_be_read_is_shown() -> None:
    blocks = list(section_blocks("system", {"unreadable": [{"path": "/sys/x", "errno": 13}]}))
    assert blocks[1] == Block("system.unreadable", columns=("path", "errno"), rows=(("/sys/x", "13"),))


def test_a_long_value_is_cut() -> None:
    (block,) = section_blocks("cpu", {"flags": ["abcdefghi"] * 100})
    assert len(block.pairs[0][1]) == 100
    assert block.pairs[0][1].endswith("…")


def test_gpus_are_in_the_order_of_their_index_and_lost_ones_last() -> None:
    block = table("gpus.gpus", [{"index": 10, "name": "c"}, {"index": 2, "name": "b"}, {"name": "lost"}])
    assert [row[-1] for row in block.rows] == ["b", "c", "lost"]


def test_columns_that_nobody_has_are_left_out() -> None:
    block = table("disks.disks", [{"name": "sda", "serial": "1"}, {"name": "sdb"}])
    assert (block.columns, block.rows) == (("name", "serial"), (("sda", "1"), ("sdb", "")))


def test_status_says_what_the_receiver_has_and_how_old_each_section_is() -> None:
    text = "\n".join(plain(status_blocks(STATUS, NOW)))
    assert "  session          connected 60 s ago, epoch 3" in text
    assert "  collected        2 h 1 min ago (boot)" in text
    assert "  receiver has it  yes (last answer: applied)" in text
    assert "  gpus  -                    30 s ago       settling: 1 of 8 GPUs answer" in text
    assert "  os    ffffffffffff  2 KiB  2 h 1 min ago" in text
    assert "abandoned" not in text


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "  joined           yes, certificate until 2026-03-31T12:00:00Z (75% of its life left)"),
        (
            {"certificate": {"notAfter": "2026-03-31T12:00:00Z", "remaining": 0.2, "renewalError": "nobody answers"}},
            "(20% of its life left); renewing it failed: nobody answers",
        ),
        ({"identityError": "the certificate expired"}, "(75% of its life left); the certificate expired"),
        ({"joined": False, "certificate": None, "identityError": ""}, "  joined           no: --insecure, nothing is encrypted"),
    ],
)
def test_status_says_whether_the_node_has_joined_and_until_when(changed: dict[str, object], said: str) -> None:
    assert said in "\n".join(plain(status_blocks(STATUS | changed, NOW)))


def test_status_of_a_node_that_has_not_joined_says_once_what_to_do() -> None:
    why = "not joined: bcd join --token-file FILE"
    bare = {
        "nodeId": None,
        "joined": False,
        "certificate": None,
        "identityError": why,
        "sessionError": why,
        "session": "not joined",
    }
    text = "\n".join(plain(status_blocks(STATUS | bare, NOW)))
    assert "  node             none\n  joined           no: bcd join --token-file FILE" in text
    assert text.count("bcd join") == 1


def test_status_shows_the_commands_that_run() -> None:
    commands = [{"id": "cmd_1", "kind": "diag.dcgm", "since": "2026-03-01T12:00:00.000Z"}]
    text = "\n".join(plain(status_blocks(STATUS | {"commands": commands}, NOW)))
    assert "  cmd_1  diag.dcgm  2026-03-01T12:00:00.000Z" in text


def test_status_shows_holds_with_what_became_of_them() -> None:
    holds = [
        {"id": "a", "owner": "metal", "kind": "allocation", "devices": ["GPU-1", "GPU-2"], "state": "held"},
        {"id": "b.json", "state": "unreadable", "reason": "not JSON", "devices": ["*"]},
    ]
    text = "\n".join(plain(status_blocks(STATUS | {"holds": holds}, NOW)))
    assert "  a       metal  allocation  GPU-1 GPU-2  held" in text
    assert "unreadable  not JSON" in text


def test_status_before_the_first_collection() -> None:
    nothing = STATUS | {
        "digest": None,
        "collectedAt": None,
        "trigger": None,
        "sections": [],
        "missing": [],
        "epoch": None,
        "lastAnswer": None,
    }
    text = "\n".join(plain(status_blocks(nothing | {"applied": False, "collecting": True, "abandonedWorkers": 1}, NOW)))
    assert "nothing collected yet" in text
    assert "collecting         now" in text
    assert "abandoned workers  1" in text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_narrow_terminal_folds_pairs_and_cuts_nothing_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("TERM", "xterm")
    out, uuid = Terminal(), "GPU-2640f7c5-58ba-4407-a356-95c87de7ca51"
    draw([Block("one", pairs=(("long", "x" * 60),)), table("gpus.gpus", [{"uuid": uuid, "busId": "00000000:18:00.0"}])], out)
    lines = [re.sub("\x1b\\[[0-9;]*m", "", line).rstrip() for line in out.getvalue().splitlines()]
    assert f"{uuid}  00000000:18:00.0" in lines
    assert max(len(line) for line in lines if "x" in line) <= 30
    assert sum(line.count("x") for line in lines) == 60


def test_a_terminal_gets_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("TERM", "xterm")
    out, pipe = Terminal(), io.StringIO()
    draw(status_blocks(STATUS, NOW), out)
    draw(status_blocks(STATUS, NOW), pipe)
    assert "\x1b[" in out.getvalue()
    assert "\x1b[" not in pipe.getvalue()
    for word in ("node_1", "settling: 1 of 8 GPUs answer", "2 h 1 min ago", "status.sections"):
        assert word in out.getvalue()
        assert word in pipe.getvalue()


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("2026-03-01T12:00:48.500Z", "11 s ago"),
        ("2026-03-01T13:00:00.000Z", "0 s ago"),
        ("2026-03-01T11:58:00.000Z", "3 min ago"),
        ("2026-02-27T12:00:00.000Z", "2 d 0 h ago"),
    ],
)
def test_ages(moment: str, words: str) -> None:
    assert since_words(moment, NOW) == words


def test_sizes() -> None:
    assert [size_words(n) for n in (0, 1023, 1024, 1536, 85899345920, 1920383410176)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "80 GiB",
        "1.7 TiB",
    ]


def test_conditions_that_are_not_false_and_what_ails_the_kernel_log_are_shown() -> None:
    conditions = [
        {"type": "KernelLogUnavailable", "status": "false", "deviceId": "", "count": 0},
        {"type": "Xid79", "status": "true", "deviceId": "GPU-1", "count": 3},
    ]
    ailing = {
        "available": False,
        "reason": "permission",
        "lostRecords": 7,
        "unattributed": [{}],
        "overflow": 2,
        "notSaved": "full",
    }
    text = "\n".join(plain(status_blocks(STATUS | {"conditions": conditions, "kernelLog": ailing}, NOW)))
    assert "Xid79  true    GPU-1     3" in text
    assert "KernelLogUnavailable" not in text
    assert "cannot be read (permission); 7 records were lost; 1 XIDs of no known GPU; 2 records of faults did not fit;" in text
    assert "the faults cannot be kept on disk: full" in text
    assert "kernel log" not in "\n".join(plain(status_blocks(STATUS, NOW)))
