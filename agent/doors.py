"""Which host and which collector the settings and `--host` mean: this machine's, or a recorded one's."""

from pathlib import Path

from agent.collection import Collector
from agent.collectors import Options
from agent.config import Config
from agent.host import Host
from agent.recorded import open_host, open_nvml


def host(host_dir: Path | None) -> Host:
    """This host, or the recorded one as it is now. Raises UserError when the directory holds none."""
    return open_host(host_dir) if host_dir else Host()


def check(config: Config, host_dir: Path | None) -> None:
    """Raises UserError when what `--host` names is no recorded host, or one that is damaged."""
    host(host_dir)
    if host_dir and not config.nvml_library:
        open_nvml(host_dir)


def options(config: Config) -> Options:
    """The settings that change what is collected. A CRI socket may be written as runtimes do, `unix:///run/.../containerd.sock`."""
    return Options(image_dir=config.image_dir, cri_socket=config.cri_socket.removeprefix("unix://"))


def collector(config: Config, host_dir: Path | None) -> Collector:
    """The collector of this host, or of a recorded one."""
    return Collector(host_dir, options(config), config.nvml_library, config.collect_limit)


def configure(collector: Collector, config: Config) -> None:
    """Other settings for a collector, which goes on knowing the children that it had to abandon."""
    collector.configure(options(config), config.nvml_library, config.collect_limit)
