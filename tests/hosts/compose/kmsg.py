"""The kernel log as /dev/kmsg gives it: one record a line, continuation lines begin with a blank."""

from tests.hosts.compose.tree import Machine


class Log:
    """Records of facility 0 with rising sequence numbers and times. `say` takes text, level and seconds since boot."""

    def __init__(self, m: Machine) -> None:
        self.machine = m
        self.records: list[str] = []

    def say(self, text: str, level: int = 6, at: float | None = None, flag: str = "-", device: str = "") -> None:
        """One record; `device` (`pci:0000:18:00.0`) becomes the dictionary lines that dev_printk adds."""
        number = len(self.records)
        stamp = int(at * 1_000_000) if at is not None else (0 if number < 8 else 180_000 + number * 2_711)
        more = f" SUBSYSTEM={device.split(':')[0]}\n DEVICE=+{device}\n" if device else ""
        self.records.append(f"{level},{number},{stamp},{flag};{text}\n{more}")
        self.machine.kmsg = "".join(self.records)


def boot(m: Machine, gpus: bool = True) -> Log:
    """The beginning of a boot, and the driver's lines for each GPU that NVML lists."""
    log = Log(m)
    facts = m.facts or {}
    release, version = facts["uname"]["release"], facts["uname"]["version"]
    line = m.files["/proc/cmdline"]
    assert isinstance(line, bytes)
    log.say(f"Linux version {release} (build@host) (gcc 11.4.0, GNU ld 2.38) {version}", 5)
    log.say(f"Command line: {line.decode().strip()}")
    for text in (
        "KERNEL supported cpus:",
        "  Intel GenuineIntel",
        "  AMD AuthenticAMD",
        "BIOS-provided physical RAM map:",
        "NX (Execute Disable) protection: active",
    ):
        log.say(text)
    for path in sorted(p for p in m.files if p.startswith("/sys/bus/pci/devices/")):
        slot = path.rsplit("/", 1)[-1]
        log.say(f"pci {slot}: BAR 0: assigned [mem size 0x01000000 64bit pref]", device=f"pci:{slot}")
    if gpus and m.nvml and m.nvml["init"] is None:
        _driver(log, m)
    return log


def _driver(log: Log, m: Machine) -> None:
    assert m.nvml is not None
    banner = m.files["/proc/driver/nvidia/version"]
    assert isinstance(banner, bytes)
    log.say("nvidia: loading out-of-tree module taints kernel.", 4, 14.2)
    log.say("nvidia-nvlink: Nvlink Core is being initialized, major device number 510", 6, 14.3)
    log.say(banner.decode().split("\n")[0].replace("NVRM version:", "NVRM: loading"), 5, 14.5)
    for device in m.nvml["devices"]:
        if "pci" in device:
            log.say(f"nvidia {device['pci']['busId'][4:].lower()}: enabling device (0140 -> 0142)", 6, 14.6)
