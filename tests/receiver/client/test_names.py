"""`better-compute gpu-name`: a GPU's names by the table, without a receiver."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from receiver.client import cli as client


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = client.main(["gpu-name", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("options", [(), ("--format", "json")])
def test_it_answers_product_and_model_in_one_line(capsys: pytest.CaptureFixture[str], options: tuple[str, ...]) -> None:
    line = '{"gpuProduct": "H100-SXM5-80GB", "gpuModel": "H100"}\n'
    assert run(capsys, "NVIDIA H100 80GB HBM3", *options) == (0, line, "")


def test_memory_decides_where_a_name_covers_several_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--memory-mib", "8192", "NVIDIA GeForce RTX 3060")
    assert (code, json.loads(out)) == (0, {"gpuProduct": "RTX-3060-PCIE-8GB", "gpuModel": "RTX-3060"})


def test_options_may_stand_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert client.main(["--format", "yaml", "gpu-name", "NVIDIA L4"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == {"gpuProduct": "L4-PCIE-24GB", "gpuModel": "L4"}
    assert client.main(["gpu-name", "gpu-name"]) == 0, "a name may be anything"
    assert json.loads(capsys.readouterr().out)["gpuProduct"] == "GPU-NAME"


def test_other_forms_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "GRID A100X-40C", "--format", "table")[1] == "gpuProduct  A100-VGPU-40GB\ngpuModel    A100-VGPU\n"
    assert yaml.safe_load(run(capsys, "GRID A100X-40C", "--format", "yaml")[1])["gpuModel"] == "A100-VGPU"


def test_an_unknown_name_is_answered_and_what_follows_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "Graphics Device")
    assert (code, json.loads(out)) == (0, {"gpuProduct": "GRAPHICS-DEVICE", "gpuModel": "other"})
    assert "version 2" in err
    assert "GpuModelUnknown" in err


@pytest.mark.parametrize("name", ["", "NVIDIA", " - "])
def test_a_name_without_a_word_is_an_error_of_use(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, err = run(capsys, name)
    assert (code, out) == (2, "")
    assert repr(name) in err
    assert "nvidia-smi -L" in err


@pytest.mark.parametrize("memory", ["0", "-1", "many", "nan", "inf", ""])
def test_memory_that_is_none_names_the_option(capsys: pytest.CaptureFixture[str], memory: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run(capsys, "NVIDIA H100", f"--memory-mib={memory}")
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert f"argument --memory-mib: invalid number of MiB above 0 value: '{memory}'" in err


def test_it_needs_no_receiver() -> None:
    program = Path(sys.executable).parent / "better-compute"
    environment = {"PATH": "/usr/bin:/bin", "BETTER_COMPUTE_SERVER": "unix:/nowhere"}
    done = subprocess.run(
        [program, "gpu-name", "Tesla V100-SXM2-16GB"], capture_output=True, text=True, env=environment, check=True
    )
    assert json.loads(done.stdout) == {"gpuProduct": "V100-SXM2-16GB", "gpuModel": "V100"}


def test_help_of_the_whole_tells_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        client.main(["--help"])
    assert "better-compute gpu-name" in capsys.readouterr().out
