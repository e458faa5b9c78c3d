r"""udev's database: what udevd found out about a device when it saw it last. Pure.

One file a device, `/run/udev/data/b259:0` (b: block, then major:minor), one record a line: `S:` a link below /dev, `E:` a
property, and others (man udevadm; the format is udevd's own):

    S:disk/by-id/nvme-eui.0025385b71b00a1f
    I:1876543
    E:ID_SERIAL_SHORT=S5GYNA0R700123
    E:ID_MODEL=SAMSUNG_MZQL23T8HCLS-00A07
    E:ID_MODEL_ENC=SAMSUNG\x20MZQL23T8HCLS-00A07
    G:systemd
"""

import re
from collections.abc import Iterable, Mapping

_ESCAPE = re.compile(r"(?:\\x[0-9a-fA-F]{2})+")


def parse(text: str) -> dict[str, str]:
    """The properties (`E:` lines) that are not empty, by name; a line of another form is passed over."""
    properties: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("E:") and "=" in line:
            name, value = line[2:].split("=", 1)
            if value.strip():
                properties[name] = value.strip()
    return properties


def entry(number: str | None) -> str | None:
    """The path of a block device's entry by its `dev` attribute, `259:0`; None for another text."""
    number = (number or "").strip()
    return f"/run/udev/data/b{number}" if re.fullmatch(r"[0-9]{1,10}:[0-9]{1,10}", number) else None


def decode(value: str) -> str:
    r"""A property of the `_ENC` kind as it was: `PERC\x20H755` is `PERC H755`."""
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[0].replace("\\x", "")).decode(errors="replace"), value).strip()


def same_device(properties: Mapping[str, str], model: str | None, wwn: str | None) -> bool:
    """Whether the entry is about the disk that sysfs shows: udev's database outlives a disk that was swapped.

    `model` and `wwn` (`naa.5000...`) are sysfs's. A WWN that sysfs knows decides, else the models, of which sysfs shows 16
    characters of a SATA disk's. Nothing to compare: not the same.
    """
    if wwn:
        named = properties.get("ID_WWN_WITH_EXTENSION") or properties.get("ID_WWN", "")
        return wwn.split(".", 1)[-1] == named.lower().removeprefix("0x").split(".", 1)[-1]
    theirs, ours = (_letters(text) for text in (properties.get("ID_MODEL", ""), model or ""))
    return bool(ours) and theirs.startswith(ours)


def by_id(links: Iterable[str]) -> dict[str, str]:
    """What the names of a disk's links in /dev/disk/by-id say, as the properties that udevd made them of: where its database
    is not to be seen (a container with the host's /dev) they still are.

    >>> by_id(["ata-ST16000NM001G-2KK103_ZL2ABCDE", "wwn-0x5000c500a1b2c3d4"])
    {'ID_MODEL': 'ST16000NM001G-2KK103', 'ID_SERIAL_SHORT': 'ZL2ABCDE', 'ID_WWN_WITH_EXTENSION': '0x5000c500a1b2c3d4'}
    """
    found: dict[str, str] = {}
    for link in sorted(links):
        kind, _, name = link.partition("-")
        model, _, serial = name.rpartition("_")
        if kind == "ata" and model and serial:
            found |= {"ID_MODEL": model, "ID_SERIAL_SHORT": serial}
        elif kind == "wwn":
            found["ID_WWN_WITH_EXTENSION"] = name
    return found


def _letters(text: str) -> str:
    return re.sub(r"[^0-9a-z]", "", text.lower())
