"""The receiver's settings: flag over environment over file over default, and what is wrong is named."""

import re
from pathlib import Path

import pytest

from receiver.config import SETTINGS, Config, check_listeners, is_local, load
from receiver.errors import ReceiverError
from receiver.values import STATUS_HANDLERS


def written(directory: Path, text: str) -> Path:
    file = directory / "receiver.toml"
    file.write_text(text)
    return file


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, '[listen]\napi = "unix:/file"\nsession = "unix:/file"\n\n[status]\ninterval = "1m"\n')
    config = load(file, {"BC_LISTEN_API": "unix:/env", "BC_LISTEN_SESSION": "unix:/env"}, {"listen_api": "unix:/flag"})
    assert (config.listen_api, config.listen_session, config.status_interval) == ("unix:/flag", "unix:/env", 60.0)
    assert config.tenant == Config().tenant == "default"


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = written(tmp_path, 'tenant = "acme"')
    assert load(None, {"BC_CONFIG": str(file)}, {}).tenant == "acme"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('tenant = "a"\n[listen]\nport = 3\n', 3, "unknown key 'listen.port'"),
        ('\nlisten.api = "unix:/a"\nlisten.apy = "x"', 3, "unknown key 'listen.apy'"),
        ("tenant = 3", 1, "tenant is an integer; expected a string"),
        ("[database]\nconnections = true", 2, "database.connections is a boolean; expected a whole number"),
        ("[database]\n\nconnections = 0", 3, "'0': expected a whole number from 1"),
        ('[listen]\napi = "nowhere"', 2, "'nowhere': expected"),
        ('[status]\ninterval = "soon"', 2, "'soon': expected a duration"),
        ("[status]\ninterval = 0", 2, "'0': expected a duration above zero"),
        ('metrics.listen = "unix:/x"', 1, "'unix:/x': expected \"host:port\""),
        ('[log]\nformat = "xml"', 2, "'xml': expected text or json"),
        ('tenant = ""', 1, "'': expected a word"),
        ('[status]\nhandlers = ["xid", "xids"]', 2, "'xid,xids': xids: expected some of conditions, xid, pressure"),
        ("[pressure]\nraise = {cpu = 101}", 2, "'cpu=101': expected percent above 0 and at most 100"),
        ("\n[pressure.raise]\ncpu = 0", 2, "'cpu=0': expected percent above 0"),
        ("pressure.raise.gpu = 50", 1, "'gpu=50': expected percent above 0 and at most 100 for some of cpu, memory, io, steal"),
        ("[pressure]\n\nraise.io = true", 3, "'io=True': expected percent"),
        ("[pressure]\nraise.io = nan", 2, "'io=nan': expected percent"),
        ("[pressure]\nraise = 60", 2, "pressure.raise is an integer; expected a table"),
        ("[pressure]\nsamples = 0", 2, "'0': expected a whole number from 1"),
        ('minDaemonVersion = "newest"', 1, "'newest': expected a version, such as"),
        ('\nprotocolMax = "three"', 2, "'three': expected MAJOR.MINOR"),
        ("certExpiringFraction = 1.0", 1, "'1.0': expected a share from 0 to below 1"),
        ('certExpiringFraction = "0.1"', 1, "certExpiringFraction is a string; expected a share"),
        ("[hygiene]\nbatch = 0", 2, "'0': expected a whole number from 1"),
        ('[status]\nhandlers = "xid"', 2, "status.handlers is a string; expected a list"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ReceiverError) as error:
        load(file, {}, {})
    assert f"{file}:{line}" in str(error.value)
    assert words in str(error.value)


def test_a_list_is_a_list_in_the_file_and_words_elsewhere(tmp_path: Path) -> None:
    file = written(tmp_path, '[status]\nhandlers = ["xid", "conditions"]\n')
    assert load(file, {}, {}).status_handlers == ("xid", "conditions")
    assert load(file, {"BC_STATUS_HANDLERS": "conditions, pressure"}, {}).status_handlers == ("conditions", "pressure")
    assert load(file, {}, {"status_handlers": ""}).status_handlers == ()
    assert Config().status_handlers == STATUS_HANDLERS


def test_levels_of_pressure_are_a_table_in_the_file_and_pairs_elsewhere(tmp_path: Path) -> None:
    default = {"cpu": 60.0, "memory": 20.0, "io": 50.0, "steal": 10.0}
    file = written(tmp_path, "[pressure]\nraise = {cpu = 70, steal = 12.5}\nsamples = 3\n")
    assert (Config().pressure_raise, Config().pressure_samples) == (default, 2)
    assert (load(file, {}, {}).pressure_raise, load(file, {}, {}).pressure_samples) == ({**default, "cpu": 70, "steal": 12.5}, 3)
    assert load(file, {"BC_PRESSURE_RAISE": "io = 80, cpu=75"}, {}).pressure_raise == {**default, "io": 80.0, "cpu": 75.0}
    assert load(None, {}, {"pressure_raise": "memory=50"}).pressure_raise == {**default, "memory": 50.0}


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, 'tennant = "a"\ndrain = true\n[listen]\napi = "nowhere"\n')
    with pytest.raises(ReceiverError) as error:
        load(file, {"BC_HYGIENE_EVERY": "x"}, {"log_format": "xml"})
    wrong = (
        f"{file}:1: unknown key 'tennant'\n  perhaps tenant",
        f"{file}:2: drain",
        f"{file}:4: listen.api",
        "BC_HYGIENE_EVERY",
        "--log-format",
    )
    assert [one for one in wrong if one not in str(error.value)] == []


@pytest.mark.parametrize("content", [b"tenant = ", b"\xff\xfe", b"[a\n"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "receiver.toml"
    file.write_bytes(content)
    with pytest.raises(ReceiverError, match=str(file)):
        load(file, {}, {})


def test_a_named_file_must_be_there_and_the_default_one_need_not(tmp_path: Path) -> None:
    with pytest.raises(ReceiverError, match="No such file"):
        load(tmp_path / "none.toml", {}, {})
    assert load(None, {}, {}) == Config()


@pytest.mark.parametrize(("environ", "flags", "where"), [({"BC_DRAIN": "x"}, {}, "BC_DRAIN"), ({}, {"drain": "x"}, "--drain")])
def test_a_wrong_variable_or_flag_is_named(environ: dict[str, str], flags: dict[str, str], where: str) -> None:
    with pytest.raises(ReceiverError, match=where):
        load(None, environ, flags)


def test_a_socket_path_that_the_kernel_cannot_take_is_refused() -> None:
    with pytest.raises(ReceiverError, match="107"):
        load(None, {}, {"listen_api": "unix:/" + "x" * 107})


@pytest.mark.parametrize("target", ["0.0.0.0:1", "gpu-1:1", "[::]:1", "10.0.0.1:1"])
@pytest.mark.parametrize("name", ["listen_session", "listen_api", "metrics_listen"])
def test_an_insecure_receiver_is_reached_from_this_machine_alone(target: str, name: str) -> None:
    check_listeners(load(None, {}, {name: target}))
    with pytest.raises(ReceiverError, match=f"listen on {re.escape(target)}.*--insecure"):
        check_listeners(load(None, {}, {name: target, "insecure": "true"}))


def test_metrics_are_for_this_machine_unless_a_person_says_otherwise() -> None:
    assert is_local(Config().metrics_listen)


@pytest.mark.parametrize("target", ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/x", "127.9.9.9:1"])
def test_listens_on_this_machine(target: str) -> None:
    check_listeners(load(None, {}, {"listen_session": target, "listen_api": target, "insecure": "true"}))


def test_every_setting_says_what_it_is() -> None:
    assert all(setting.help.endswith(".") for setting in SETTINGS)
    assert len({setting.flag for setting in SETTINGS}) == len(SETTINGS)


def test_a_key_with_capitals_is_a_variable_and_a_flag_with_words(tmp_path: Path) -> None:
    file = written(tmp_path, 'minDaemonVersion = "0.1"\nprotocolMax = "0.9"\ncertExpiringMinSeconds = 60\n')
    config = load(file, {"BC_PROTOCOL_MAX": "1.0"}, {"min_daemon_version": "0.2.0"})
    assert (config.min_daemon_version, config.protocol_max, config.cert_expiring_min_seconds) == ("0.2.0", "1.0", 60.0)
    assert {"--min-daemon-version", "--protocol-max", "--cert-expiring-fraction"} <= {setting.flag for setting in SETTINGS}
