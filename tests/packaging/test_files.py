"""The files of the packages that come from the code, and those that stand beside it."""

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from agent import config as agent_config
from receiver import config as receiver_config
from tests.packaging.scripts import PACKAGING, build, files
from tests.scripts import ROOT

CONFIGURATION = list(files.CONFIGURATION)


# ---- configuration


@pytest.mark.parametrize("package", CONFIGURATION)
def test_the_committed_configuration_is_what_the_settings_say(package: str) -> None:
    """`python packaging/files.py --config packaging/config` writes it anew."""
    path, text = files.CONFIGURATION[package]
    assert (PACKAGING / "config" / Path(path).name).read_text() == text()


def test_the_packaged_bcd_has_the_defaults_but_for_what_packaged_names(tmp_path: Path) -> None:
    (tmp_path / "bcd.toml").write_text(files.bcd_toml())
    assert agent_config.load(tmp_path / "bcd.toml", {}, {}) == dataclasses.replace(agent_config.Config(), **files.PACKAGED)


def test_the_packaged_receiver_has_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "receiver.toml").write_text(receiver_config.render())
    assert receiver_config.load(tmp_path / "receiver.toml", {}, {}) == receiver_config.Config()


def uncommented(text: str) -> str:
    return re.sub(r"^#([a-zA-Z_]+ = )", r"\1", text, flags=re.MULTILINE)


def test_every_line_of_bcd_toml_may_be_uncommented_and_is_then_the_default(tmp_path: Path) -> None:
    (tmp_path / "bcd.toml").write_text(uncommented(files.bcd_toml()))
    assert agent_config.load(tmp_path / "bcd.toml", {}, {}) == dataclasses.replace(agent_config.Config(), **files.PACKAGED)
    assert all(setting.help in files.bcd_toml() for setting in agent_config.SETTINGS)


def test_every_line_of_receiver_toml_may_be_uncommented_and_is_then_the_default(tmp_path: Path) -> None:
    (tmp_path / "receiver.toml").write_text(uncommented(receiver_config.render()))
    assert receiver_config.load(tmp_path / "receiver.toml", {}, {}) == receiver_config.Config()
    assert all(setting.help in receiver_config.render() for setting in receiver_config.SETTINGS)


# ---- manual and completion


@pytest.mark.parametrize("program", list(files.PROGRAMS))
def test_a_manual_page_has_every_command_and_every_option_that_help_shows(program: str) -> None:
    _, section, parser = files.PROGRAMS[program]
    page = files.manual(program, section, parser()).replace("\\-", "-")
    for words, _, sub in files.commands(parser(), program):
        assert words in page
        for action in sub._actions:
            if action.help != files.argparse.SUPPRESS:
                assert all(option in page for option in action.option_strings)


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("package", CONFIGURATION)
def test_groff_has_nothing_to_say_about_a_manual_page(package: str, tmp_path: Path) -> None:
    for path, text in files.files(package):
        if "/man/" in path:
            done = subprocess.run(
                ["groff", "-man", "-Tutf8", "-ww", "-z"], input=text, capture_output=True, text=True, check=False, timeout=30
            )
            assert (done.returncode, done.stderr) == (0, ""), path


def complete(program: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    line = " ".join(f"'{word}'" for word in (program, *words))
    run = f'COMP_WORDS=({line}); COMP_CWORD={len(words)}; _{program.replace("-", "_")}; printf "%s\\n" "${{COMPREPLY[@]}}"'
    text = files.completion(program, files.PROGRAMS[program][2]()) + run
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_offers_commands_then_their_options() -> None:
    assert {"run", "doctor", "inventory", "join"} <= set(complete("bcd", ""))
    assert complete("bcd", "doc") == ["doctor"]
    assert "--hashes" in complete("bcd", "inventory", "--")
    assert "--hashes" not in complete("bcd", "status", "--")
    assert complete("bcd", "--config", "/x", "inventory", "--ha") == ["--hashes"]
    assert complete("bc-receiver", "mig") == ["migrate"]
    assert "nodes.list" in complete("better-compute", "api", "nodes.l")


def test_completion_falls_back_to_files(tmp_path: Path) -> None:
    (tmp_path / "log.1").touch()
    assert complete("bcd", "xid", f"{tmp_path}/lo") == [f"{tmp_path}/log.1"]


# ---- units

UNITS = sorted(path.name for path in (PACKAGING / "systemd").iterdir())
LIMITS = {"bcd.service": 2.4, "bcd-helper@.service": 3.5, "bc-receiver.service": 2.0}


@pytest.mark.parametrize("unit", UNITS)
def test_every_directive_stands_below_its_reason(unit: str) -> None:
    """A run of lines without a comment or an empty line between them shares the comment above it; [Install] needs none."""
    explained, section, alone = False, "", []
    for line in (PACKAGING / "systemd" / unit).read_text().splitlines():
        if line.startswith("["):
            section, explained = line, False
        elif not line:
            explained = False
        elif line.startswith("#"):
            explained = True
        elif not explained and section == "[Service]":
            alone.append(line)
    assert [line for line in alone if line.split("=")[0] not in ("Type", "ExecStart")] == []


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with the units and stand-ins for what they start."""
    for name in ("opt/bcd/bin/bcd", "opt/bcd/bin/python3", "opt/bc-receiver/bin/bc-receiver", "bin/sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    shutil.copytree(PACKAGING / "systemd", tmp_path / "usr/lib/systemd/system")
    for target in ("sysinit", "basic", "shutdown", "multi-user", "sockets", "network-online"):
        (tmp_path / f"usr/lib/systemd/system/{target}.target").write_text("[Unit]\nDescription=stands for the real one\n")
    return tmp_path


needs_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


@needs_analyze
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_has_nothing_to_say_about_a_unit(unit: str, root: Path) -> None:
    name = unit.replace("@.", "@1.")
    argv = ["systemd-analyze", "verify", f"--root={root}", "--recursive-errors=no", name]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_analyze
@pytest.mark.parametrize("unit", list(LIMITS))
def test_a_unit_is_exposed_no_more_than_it_may_be(unit: str) -> None:
    argv = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(PACKAGING / "systemd" / unit)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    match = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert match is not None
    assert float(match[1]) <= LIMITS[unit]
    assert done.stderr == ""


def test_a_unit_sees_what_its_work_needs() -> None:
    """What would be tighter and breaks it (research: each was tried): no PrivateDevices, no ProtectKernelLogs, netlink.

    ProtectKernelModules hides /usr/lib/modules, which agent/conditions/module.py reads.
    """
    text = (PACKAGING / "systemd/bcd.service").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    names = "PrivateDevices PrivateUsers PrivateNetwork PrivateTmp ProcSubset ProtectProc ProtectKernelLogs ProtectKernelModules"
    forbidden = tuple(f"{name}=" for name in names.split())
    assert [line for line in lines if line.startswith(forbidden)] == []
    assert "DeviceAllow=/dev/kmsg r" in lines
    assert any(line.startswith("RestrictAddressFamilies=") and "AF_NETLINK" in line for line in lines)


def test_what_is_handed_over_is_what_bcd_looks_for() -> None:
    from agent.host import _HANDED_OVER

    text = (PACKAGING / "systemd/bcd.service").read_text()
    loaded = {path: name for name, path in re.findall(r"^LoadCredential=(\w+):(.+)$", text, re.MULTILINE)}
    assert loaded == _HANDED_OVER
    assert set(re.findall(r"^SetCredential=(\w+):\\n$", text, re.MULTILINE)) == set(loaded.values())


# ---- locks, scripts


@pytest.mark.parametrize("package", list(build.PACKAGES))
def test_a_package_has_the_versions_and_hashes_of_the_lock(package: str) -> None:
    whole, part = (ROOT / "requirements.lock").read_text(), (PACKAGING / f"locks/{package}.txt").read_text()
    for pattern in (r"^[\w.-]+==[^\s;]+", r"sha256:\w+"):
        found = set(re.findall(pattern, part, re.MULTILINE))
        assert found
        assert found <= set(re.findall(pattern, whole, re.MULTILINE))


@pytest.mark.parametrize("package", list(build.PACKAGES))
@pytest.mark.parametrize("name", ["postinst", "prerm", "postrm"])
def test_a_maintainers_script_is_a_shell_script_without_gaps(package: str, name: str) -> None:
    text = build.script(f"debian/{name}", build.PACKAGES[package])
    assert re.findall(r"@[A-Z]+@", text) == []
    subprocess.run(["sh", "-n"], input=text, text=True, check=True, timeout=30)
    assert "set -e" in text
