"""Selectors (SPEC B9): Kubernetes' operators, numbers, any value; an error names the position."""

import pytest

from receiver.planning.selector import MOST, MOST_VALUES, Requirement, SelectorError, matches, parse

NODE = {
    "gpu.model": "H100",
    "gpu.count": "8",
    "gpu.vramGiB": "79.5",
    "bc.dev/driver.nvidia": "550.54.15",
    "tier": "",
    "in": "x",
    "temp": "-5",
}

MEANT = [
    ("", True),
    ("  ", True),
    ("gpu.model=H100", True),
    ("gpu.model==H100", True),
    (" gpu.model = H100 ", True),
    ("gpu.model=h100", False),
    ("gpu.model=H200", False),
    ("gpu.model!=H200", True),
    ("gpu.model!=H100", False),
    ("no.such!=H100", True),
    ("gpu.model in (H200,H100)", True),
    ("gpu.model in(H200, B200)", False),
    ("gpu.model notin (H200,B200)", True),
    ("gpu.model notin (H100)", False),
    ("no.such notin (a)", True),
    ("no.such in (a)", False),
    ("no.such in (,a)", False),
    ("gpu.model", True),
    ("no.such", False),
    ("!no.such", True),
    ("!gpu.model", False),
    ("! gpu.model", False),
    ("gpu.model=*", True),
    ("no.such=*", False),
    ("tier=", True),
    ("tier=*", True),
    ("tier in (,a)", True),
    ("tier!=", False),
    ("no.such=", False),
    ("gpu.model=", False),
    ("bc.dev/driver.nvidia=550.54.15", True),
    ("in in (x)", True),
    ("in", True),
    ("in=x,gpu.model in (in,notin,H100)", True),
    ("gpu.count>4", True),
    ("gpu.count > 8", False),
    ("gpu.count<9,gpu.count>7", True),
    ("gpu.count>10", False),
    ("gpu.vramGiB>79.25", True),
    ("gpu.vramGiB<79.5", False),
    ("temp<-4.5", True),
    ("temp>-5", False),
    ("gpu.model>1", False),
    ("gpu.model<1", False),
    ("tier<1", False),
    ("no.such<1", False),
    ("gpu.model=H100,gpu.count=8,!spot", True),
    ("gpu.model=H100,gpu.count=7", False),
]


@pytest.mark.parametrize(("text", "meant"), MEANT)
def test_selects_as_kubernetes_does(text: str, meant: bool) -> None:
    assert matches(parse(text), NODE) is meant


def test_reads_each_operator_as_one_requirement_in_order() -> None:
    assert parse("a=1,b!=2,c in (y,x,y),d notin (z),e,!f,g>1,h<2.5,i=*") == (
        Requirement("a", "in", ("1",)),
        Requirement("b", "notin", ("2",)),
        Requirement("c", "in", ("y", "x")),
        Requirement("d", "notin", ("z",)),
        Requirement("e", "exists"),
        Requirement("f", "absent"),
        Requirement("g", "gt", ("1",)),
        Requirement("h", "lt", ("2.5",)),
        Requirement("i", "exists"),
    )


BAD = [
    (",", "position 1: expected a label's key"),
    ("a=1,", "position 5: expected a label's key"),
    ("a=1,,b=2", "position 5: expected a label's key"),
    ("a=1 b=2", "position 5: expected a comma, found 'b'"),
    ("=1", "position 1: expected a label's key"),
    ("!", "position 2: expected a label's key"),
    ("!a=1", "position 3: expected a comma, found '='"),
    ("!!a", "position 2: expected a label's key"),
    ("a b", "position 3: expected one of = =="),
    ("a=b=c", "position 4: expected a comma"),
    ("a>=4", "position 3: expected a number after >, found '='"),
    ("a>", "position 3: expected a number after >, found the end"),
    ("a>x", "position 3: expected a number after >"),
    ("a<1e3", "position 3: expected a number after <"),
    ("a>٣", "position 3: expected a number after >"),
    ("a!=*", "position 4: expected a value (any value is KEY=*, none is !KEY)"),
    ("a in (*)", "position 7: expected a value"),
    ("a in", "position 5: expected (, found the end"),
    ("a in ()", "position 7: expected a value"),
    ("a in (x", "position 8: expected a comma or ), found the end"),
    ("a in (x y)", "position 9: expected a comma or ), found 'y'"),
    ("a in x", "position 6: expected ("),
    ("a(", "position 2: expected one of"),
    ("a;drop=1", "position 1: expected a label's key"),
    ("ключ=1", "position 1: expected a label's key"),
    ("a=" + "v" * 64, "position 3: expected a value of at most 63 characters"),
    ("k" * 318, "position 1: expected a label's key (at most 317"),
    ("a=1," * 2000, "at most 4,096 characters"),
    (",".join(["a"] * (MOST + 1)), f"at most {MOST} requirements"),
    ("a in (" + "x," * MOST_VALUES + "x)", f"expected at most {MOST_VALUES} values"),
]


@pytest.mark.parametrize(("text", "error"), BAD)
def test_refuses_what_cannot_be_read_and_names_the_position(text: str, error: str) -> None:
    with pytest.raises(SelectorError) as refused:
        parse(text)
    assert error in str(refused.value)


def test_takes_as_many_requirements_and_values_as_the_limits_say() -> None:
    assert len(parse(",".join(["a"] * MOST))) == MOST
    (one,) = parse("a in (" + ",".join(str(number) for number in range(MOST_VALUES)) + ")")
    assert len(one.values) == MOST_VALUES
