"""Doctor's page: aligned, folded to the terminal without cutting a name, coloured only there."""

import json

import pytest

from agent.doctor import render
from agent.doctor.line import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARNING, Line

UUID = "GPU-2640f7c5-58ba-4407-a356-95c87de7ca51"
LINES = (
    Line("kernel", PASS, "n1, Linux 6.8.0 x86_64"),
    Line("gpu", FAIL, f"H100 {UUID}: a row remap has failed", "have it replaced", {"index": 0, "uuid": UUID}),
    Line("certificate", NOT_APPLICABLE, "none"),
)


def test_is_aligned_with_what_to_do_below() -> None:
    assert list(render.text(LINES)) == [
        "ok    kernel       n1, Linux 6.8.0 x86_64",
        f"fail  gpu          H100 {UUID}: a row remap has failed",
        "                   -> have it replaced",
        "-     certificate  none",
        "1 failure, 1 ok, 1 not applicable",
    ]


def test_is_folded_to_the_terminal_and_no_id_is_cut() -> None:
    page = list(render.text(LINES, width=62))
    assert any(UUID in line for line in page)
    assert max(len(line) for line in page if UUID not in line) <= 62
    assert len(page) > len(list(render.text(LINES)))


def test_colour_stands_around_the_verdict_alone() -> None:
    page = list(render.text(LINES, colour=True))
    assert page[1].startswith("\x1b[1;31mfail\x1b[0m  gpu")
    assert all(line.count("\x1b[") in (0, 2) for line in page)
    assert "\x1b" not in "".join(render.text(LINES))


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ((FAIL, FAIL, PASS), "2 failures, 1 ok"),
        ((WARNING, UNKNOWN), "2 warnings"),
        ((UNKNOWN, NOT_APPLICABLE), "1 warning, 1 not applicable"),
        ((), ""),
    ],
)
def test_counts(verdicts: tuple[str, ...], expected: str) -> None:
    assert render.summary(Line("x", verdict, "y") for verdict in verdicts) == expected


def test_json_has_each_line_with_its_facts() -> None:
    told = render.json_of(LINES, 2)
    assert json.loads(json.dumps(told)) == told
    assert told["exitCode"] == 2
    assert told["lines"][1] == {
        "subject": "gpu",
        "result": "fail",
        "shown": "fail",
        "text": f"H100 {UUID}: a row remap has failed",
        "todo": "have it replaced",
        "facts": {"index": 0, "uuid": UUID},
    }
    assert [line["shown"] for line in told["lines"]] == ["ok", "fail", "-"]
