"""Settings: one row says all; what is wrong is named with its file and line."""

from pathlib import Path

import pytest

from agent import config
from agent.config import SETTINGS, Config, load
from agent.errors import UserError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "bcd.toml"
    path.write_text(text)
    return path


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(tmp_path: Path) -> None:
    file = write(tmp_path, 'image_dir = "/file"\ncri_socket = "/file"\nsettle = "1m"\n')
    loaded = load(file, {"BCD_CRI_SOCKET": "/environment", "BCD_SETTLE": "2m"}, {"settle": "3m"})
    assert (loaded.image_dir, loaded.cri_socket, loaded.settle) == ("/file", "/environment", 180.0)
    assert loaded.rescan_interval == 43200.0


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    file = write(tmp_path, 'settle = "soon"\ncolour = "red"\nimage_dir = 7\n')
    with pytest.raises(UserError) as caught:
        load(file, {"BCD_PROBE_INTERVAL": "x"}, {"log_format": "xml"})
    wrong = (
        "settle: 'soon'",
        "unknown key 'colour'",
        "image_dir is an integer",
        "variable BCD_PROBE_INTERVAL",
        "--log-format: 'xml'",
    )
    assert [what for what in wrong if what not in str(caught.value)] == []


def test_each_value_tells_where_it_came_from(tmp_path: Path) -> None:
    file = write(tmp_path, '\nsettle = "1m"\n[nvml]\nlibrary = "/x"\n[log]\nformat = "json"\n')
    found = config.effective(file, {"BCD_SETTLE": "2m", "BCD_LOG_FORMAT": "text"}, {"log_format": "json"})
    assert found.sources == {
        **{setting.name: "default" for setting in SETTINGS},
        "settle": "environment variable BCD_SETTLE",
        "nvml_library": f"{file}:4",
        "log_format": "--log-format",
    }
    assert (found.config.settle, found.config.nvml_library, found.config.log_format) == (120.0, "/x", "json")


def test_what_needs_a_restart_is_kept_and_named_when_settings_are_read_again(tmp_path: Path) -> None:
    old = Config(data_dir=tmp_path, metrics_listen="127.0.0.1:7703")
    held, later = config.reloaded(old, Config(data_dir=tmp_path / "other", settle=1.0))
    assert held == Config(data_dir=tmp_path, metrics_listen="127.0.0.1:7703", settle=1.0)
    assert later == ["data_dir", "metrics.listen"]
    assert config.reloaded(old, old) == (old, [])
    with pytest.raises(UserError, match="nothing is encrypted"):  # this server is for who restarts without --insecure
        config.reloaded(Config(insecure=True), Config(server="10.0.0.1:7443"))


def test_every_setting_has_its_own_key_variable_flag_and_help() -> None:
    for names in ([s.key for s in SETTINGS], [s.variable for s in SETTINGS], [s.flag for s in SETTINGS]):
        assert len(set(names)) == len(names)
    assert all(setting.help.endswith(".") for setting in SETTINGS)
    assert {setting.name for setting in SETTINGS} == set(Config.__dataclass_fields__)


def test_the_shipped_file_shows_every_key_and_its_lines_are_the_defaults() -> None:
    shipped = config.render()
    uncommented = "\n".join(
        line.removeprefix("#") if " = " in line and not line.startswith("# ") else line for line in shipped.split("\n")
    )
    assert config.parse(shipped, "bcd.toml") == {}
    assert config.parse(uncommented, "bcd.toml") == {setting.name: getattr(Config(), setting.name) for setting in SETTINGS}


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ('server = "a:1"\n\ncolour = "red"\n', ":3: ", "unknown key 'colour'"),
        ('[nvml]\nlibrary = "x"\npath = "y"\n', ":3: ", "unknown key 'nvml.path'"),
        ("[extra]\nx = 1\n", ":1: ", "unknown key 'extra'"),
        ("\nimage_dir = 7\n", ":2: ", "image_dir is an integer; expected a string"),
        ('insecure = "yes"\n', ":1: ", "insecure is a string; expected true or false"),
        ("[collect]\nlimit = true\n", ":2: ", 'collect.limit is a boolean; expected a duration such as "60s"'),
        ('collect.limit = "0s"\n', ":1: ", "above zero"),
        ('settle = "soon"\n', ":1: ", "expected a duration"),
        ('server = "nowhere"\n', ":1: ", 'expected "host:port"'),
        ("settle = [1]\n", ":1: ", "settle is an array"),
        ('"settle" = 2021-01-01\n', ":1: ", "settle is a date"),
        ('[log]\nformat = "xml"\n', ":2: ", "expected text or json"),
        ('metrics.listen = "unix:/m"\n', ":1: ", 'expected "host:port"'),
        ("nvml = 3\n", ":1: ", "unknown key 'nvml'"),
        ('[commands]\nallow = ["gpu.reset", "node.fly"]\n', ":2: ", "node.fly: expected some of inventory.refresh, diag.nvml"),
        ('[commands]\nallow = "gpu.reset"\n', ":2: ", "commands.allow is a string; expected a list of strings"),
        ("[reset]\npause = [7]\n", ":2: ", "reset.pause holds something else than strings"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, place: str, what: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load(file, {}, {})
    assert str(caught.value).startswith(f"{file}{place}")
    assert what in str(caught.value)


def test_a_list_is_a_list_in_the_file_and_words_with_commas_elsewhere(tmp_path: Path) -> None:
    file = write(tmp_path, '[reset]\npause = ["a", "b"]\n')
    assert load(file, {}, {}).reset_pause == ("a", "b")
    assert load(file, {"BCD_COMMANDS_ALLOW": "gpu.reset, node.reboot"}, {}).commands_allow == ("gpu.reset", "node.reboot")
    assert load(file, {"BCD_COMMANDS_ALLOW": ""}, {}).commands_allow == ()


def test_what_is_no_toml_or_no_text_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"bcd\.toml: not valid TOML: .*line 2"):
        load(write(tmp_path, 'a = 1\nb = "\n'), {}, {})
    broken = tmp_path / "bytes.toml"
    broken.write_bytes(b"server = \xff")
    with pytest.raises(UserError, match=r"bytes\.toml: not UTF-8"):
        load(broken, {}, {})


def test_a_named_file_must_be_there_and_the_default_one_need_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "DEFAULT_FILE", tmp_path / "absent.toml")
    assert load(None, {}, {}) == config.Config()
    with pytest.raises(UserError, match=r"cannot read the configuration .*gone\.toml: No such file"):
        load(tmp_path / "gone.toml", {}, {})
    with pytest.raises(UserError, match=r"gone\.toml"):
        load(None, {"BCD_CONFIG": str(tmp_path / "gone.toml")}, {})


def test_a_wrong_variable_or_flag_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "")
    with pytest.raises(UserError, match="environment variable BCD_SETTLE: 'x'"):
        load(file, {"BCD_SETTLE": "x"}, {})
    with pytest.raises(UserError, match="--log-format: 'xml': expected text or json"):
        load(file, {}, {"log_format": "xml"})


@pytest.mark.parametrize("server", ["127.0.0.1:7443", "localhost:1", "[::1]:7443", "unix:/run/bc.sock", "127.9.9.9:80"])
def test_a_server_on_this_machine_may_be_without_encryption(tmp_path: Path, server: str) -> None:
    assert load(write(tmp_path, ""), {"BCD_INSECURE": "true"}, {"server": server}).servers == (server,)


@pytest.mark.parametrize("server", ["10.0.0.1:7443", "receiver.example:7443", "127.0.0.1:1,0.0.0.0:1"])
def test_another_machine_is_never_reached_without_encryption(tmp_path: Path, server: str) -> None:
    file = write(tmp_path, "")
    with pytest.raises(UserError, match=r"is not on this machine and with --insecure nothing is encrypted\n  join it"):
        load(file, {"BCD_INSECURE": "true"}, {"server": server})
    assert load(file, {}, {"server": server}).servers == tuple(server.split(","))


def test_several_servers_stand_between_commas_and_none_is_what_joining_told(tmp_path: Path) -> None:
    assert load(write(tmp_path, 'server = "a:1, [::1]:2,unix:/g"'), {}, {}).servers == ("a:1", "[::1]:2", "unix:/g")
    assert load(write(tmp_path, ""), {}, {}).servers == ()
    assert load(write(tmp_path, "insecure = true"), {}, {}).servers == ("127.0.0.1:7443",)
    with pytest.raises(UserError, match=r"'a:1,': expected \"host:port\""):
        load(write(tmp_path, ""), {}, {"server": "a:1,"})


def test_the_local_socket_is_in_the_data_directory_unless_named(tmp_path: Path) -> None:
    file = write(tmp_path, "")
    assert load(file, {}, {"data_dir": str(tmp_path)}).socket_path == tmp_path / "bcd.sock"
    assert load(file, {}, {"socket": "/run/bcd/bcd.sock"}).socket_path == Path("/run/bcd/bcd.sock")
