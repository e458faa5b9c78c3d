"""Doctor's lines of everything but the GPUs. Pure: what was found in, lines out."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.hardware_key import TRUSTED, identifiers, provisional

from agent.checks import node
from agent.conditions import table
from agent.config import DEFAULT_FILE
from agent.doctor.found import PATIENCE, Found
from agent.doctor.gpus import ACTIONS
from agent.doctor.line import FAIL, NOT_APPLICABLE, PASS, UNKNOWN, WARNING, Line
from agent.identity import Certificate, moment
from agent.render import size_words

_DMI = ("/sys/class/dmi/id/", "/sys/firmware/dmi/")
_CLOCK = 5.0  # seconds between our clock and the receiver's that nobody minds
_LITTLE = 0.1  # of a certificate's life: by then it should have been renewed long ago
_REJOIN = "bcd join --force --token-file FILE, with a token that is bound to this node"
_ROOT = "run doctor as root"


def kernel(found: Found) -> Iterator[Line]:
    """Name, kernel, distribution, uptime.

    To do: report a section `os` that failed.
    """
    system = found.section(pb.OsSection)
    distribution = f"; {system.pretty_name}" if system and system.pretty_name else ""
    up = f"; up {_duration(found.uptime)}" if found.uptime not in (0.0, float("inf")) else ""
    failed = found.failed.get("os")
    if failed:
        yield Line("kernel", UNKNOWN, f"{found.name}{up}; section os: {failed.reason}: {failed.message}", "report it")
    else:
        yield Line("kernel", PASS, f"{found.name}{distribution}{up}")


def configuration(found: Found) -> Iterator[Line]:
    """Whether it reads: a line for each thing that is wrong.

    To do: mend the line that is named; until then this report goes by the defaults.
    """
    place = found.place
    for error in re.split(r"\n(?! )", place.wrong) if place.wrong else ():  # a hint is indented
        wrong, _, todo = error.partition("\n")
        yield Line("configuration", FAIL, wrong, todo.strip() or "mend it; the rest of this report goes by the defaults")
    if not place.wrong:
        yield Line(
            "configuration", PASS, f"{place.source} reads" if place.source else f"the defaults; there is no {DEFAULT_FILE}"
        )


def data_dir(found: Found) -> Iterator[Line]:
    """The directory's mode, and its faults.json.

    To do: chmod 700; a damaged file was moved aside: remove it when you have seen it.
    """
    directory = found.data_dir
    if directory is None:
        yield Line("data_dir", NOT_APPLICABLE, "a recorded host has none, unless one is named", "")
    elif directory.mode is None:
        yield Line("data_dir", NOT_APPLICABLE, f"{directory.path} is not there yet; the daemon makes it")
    elif not directory.is_open:
        yield Line("data_dir", UNKNOWN, f"{directory.path} may not be entered by this user", _ROOT)
    elif directory.mode & 0o077:
        mode = f"{directory.path} has mode {directory.mode:04o}: others may enter it"
        yield Line("data_dir", WARNING, mode, f"chmod 700 {directory.path}")
    elif directory.stored and directory.stored.refused:
        yield Line("data_dir", UNKNOWN, directory.stored.refused, _ROOT)
    elif directory.stored and directory.stored.damaged:
        todo = "nothing is lost that the kernel log still holds; remove the file that was moved aside when you have seen it"
        yield Line("data_dir", WARNING, directory.stored.damaged, todo)
    else:
        yield Line("data_dir", PASS, f"{directory.path}, mode {directory.mode:04o}")


def daemon(found: Found) -> Iterator[Line]:
    """Whether it runs, and its session.

    To do: systemctl start bcd; join (bcd join); else the line of the receiver and journalctl -u bcd say why.
    """
    told = found.daemon
    if found.data_dir is None:
        yield Line("daemon", NOT_APPLICABLE, "a recorded host has none")
    elif told is None:
        may_not = "Permission denied" in found.no_daemon
        todo = _ROOT if may_not else "start it: systemctl start bcd"
        yield Line("daemon", UNKNOWN if may_not else WARNING, found.no_daemon, todo)
    elif told["session"] == "not joined":
        yield Line("daemon", WARNING, f"runs, process {told['pid']}, and has not joined", "bcd join --token-file FILE")
    elif told["session"] != "connected":
        error = f": {told['sessionError']}" if told["sessionError"] else ""
        text = f"runs as {told['nodeId']}, process {told['pid']}; the session is {told['session']}{error}"
        revoked = told["sessionError"].startswith("revoked")
        yield Line("daemon", WARNING, text, _REJOIN if revoked else "see the line of the receiver, and the daemon's log")
    elif told["abandonedWorkers"]:
        text = f"runs as {told['nodeId']}; {told['abandonedWorkers']} workers hang in a driver and cannot be ended"
        yield Line("daemon", WARNING, text, "see the kernel log for hung tasks; a reboot ends them")
    else:
        applied = "the receiver has its inventory" if told["applied"] else "the receiver does not have its inventory yet"
        yield Line("daemon", PASS, f"runs as {told['nodeId']}, process {told['pid']}; connected, {applied}")


def kernel_log(found: Found) -> Iterator[Line]:
    """Whether it can be read, from the boot's first record.

    To do: run doctor as root; start bcd at boot; log_buf_len= on the kernel command line keeps more.
    """
    ledger, error = found.log.ledger, found.log.error
    if found.log.reason == "absent" and found.is_recorded:
        yield Line("kernel log", UNKNOWN, "none was recorded", "record it: `bcd capture` as root, or put it beside root/ as kmsg")
    elif error:
        text, _, todo = error.partition("; ")
        yield Line("kernel log", UNKNOWN, text, todo or _ROOT)
    elif ledger is None or ledger.cursor is None:
        yield Line("kernel log", UNKNOWN, "it holds no record", "")
    elif ledger.lost:
        todo = "a larger ring (log_buf_len=) keeps more of it; what was lost is lost"
        yield Line("kernel log", UNKNOWN, f"read, but {ledger.lost} records of this boot were lost", todo)
    elif not ledger.from_start:
        text = "read, but the beginning of this boot was gone when it was first read"
        yield Line("kernel log", UNKNOWN, text, "start the daemon at boot; a larger ring (log_buf_len=) keeps more")
    else:
        yield Line("kernel log", PASS, f"{_count(ledger.cursor + 1, 'record')}, from this boot's first on")


def xid(found: Found) -> Iterator[Line]:
    """`xid.recent` over all GPUs and switches; an XID of no known GPU is a failure whatever it means.

    To do: what the line says: the heaviest of what its XIDs ask for.
    """
    nobodys = found.facts.ledger.unattributed if found.facts.ledger else ()
    for fault in nobodys:
        text = f"{node.words_of(fault, with_bus_id=True)}: no GPU is known there"
        yield Line("xid", FAIL, text, "see whether a GPU is missing in that slot")
    outcome = node.recent(found.facts)
    if outcome.verdict == FAIL:
        failing = [f for f in found.facts.ledger.faults.values() if f.policy.policy] if found.facts.ledger else []
        worst = [action for action in ACTIONS if any(fault.policy.action == action for fault in failing)]
        yield Line("xid", FAIL, outcome.reason, ACTIONS[worst[0]])
    elif outcome.verdict == UNKNOWN:
        seen = [node.words_of(f, with_bus_id=True) for f in (found.facts.ledger.faults.values() if found.facts.ledger else ())]
        text = f"there may be XIDs of this boot that are not known{'; seen: ' * bool(seen)}{'; '.join(seen)}"
        yield Line("xid", UNKNOWN, text, "see the line of the kernel log")
    elif outcome.warning:
        yield Line("xid", WARNING, outcome.reason, ACTIONS["inspect"])
    elif not nobodys:
        yield Line("xid", PASS, outcome.reason)


def psi(found: Found) -> Iterator[Line]:
    """Pressure stall information.

    To do: psi=1 on the kernel command line, if pressure is wanted.
    """
    system = found.section(pb.OsSection)
    if system is None:
        yield Line("psi", UNKNOWN, "section os is missing")
    elif system.psi:
        yield Line("psi", PASS, "the kernel tells pressure")
    else:
        text = "the kernel does not tell pressure, so none is reported"
        yield Line("psi", NOT_APPLICABLE, text, "psi=1 on the kernel command line turns it on")


def dmi(found: Found) -> Iterator[Line]:
    """Whether firmware's identities can be read.

    To do: run doctor as root.
    """
    system = found.section(pb.SystemSection)
    if system is None:
        yield Line("dmi", UNKNOWN, "section system is missing")
        return
    refused = [entry.path for entry in system.unreadable if entry.path.startswith(_DMI)]
    if refused:
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        yield Line("dmi", UNKNOWN, f"{refused[0]}{more} cannot be read", _ROOT)
    elif system.manufacturer or system.product or system.board.vendor:
        words = " ".join(part for part in (system.manufacturer, system.product) if part)
        serial = identifiers(system).serial
        yield Line("dmi", PASS, f"{words}, " + (f"serial {serial}" if serial else "no serial that tells it from others"))
    else:
        yield Line("dmi", NOT_APPLICABLE, "the firmware has no tables")


def hardware_key(found: Found) -> Iterator[Line]:
    """How many independent kinds of identity tell this machine from others.

    To do: set UUID and serial in the firmware.
    """
    sections = (found.section(pb.SystemSection), found.section(pb.NicsSection), found.section(pb.GpusSection))
    them = identifiers(*sections)
    counted = {
        "uuid": "the product UUID",
        "serial": f"serial {them.serial}",
        "mac": f"{len(them.macs)} MAC" + "s" * (len(them.macs) != 1),
        "gpu": f"{len(them.gpus)} GPU" + "s" * (len(them.gpus) != 1),
    }
    words = ", ".join(counted[kind] for kind in them.kinds) or "nothing"
    why = provisional(*sections)
    later = f"; provisional: {why}" if why else ""
    facts = {"kinds": list(them.kinds), "trusted": them.is_trusted, "key": them.key}
    if them.is_trusted:
        yield Line("hardware key", PASS, f"{len(them.kinds)} of 4 kinds: {words}{later}", "", facts)
    else:
        text = f"{len(them.kinds)} of 4 kinds, {TRUSTED} are needed to tell machines apart: {words}{later}"
        yield Line(
            "hardware key", WARNING, text, "set UUID and serial in the firmware; as an ordinary user, run doctor as root", facts
        )


def fabric_manager(found: Found) -> Iterator[Line]:
    """As the condition FabricManagerDown is judged.

    To do: start nvidia-fabricmanager, of the driver's version.
    """
    verdicts = list(table.fabric_manager_down(found.conditions))
    if not verdicts:
        yield Line("fabric manager", NOT_APPLICABLE, "no GPU here needs one")
    for verdict in verdicts:
        if verdict.status == table.TRUE:
            yield Line("fabric manager", FAIL, verdict.message, "start nvidia-fabricmanager, of the driver's version")
        elif verdict.status == table.UNKNOWN:
            yield Line("fabric manager", UNKNOWN, verdict.message)
        else:
            yield Line("fabric manager", PASS, "the fabric is up")


def reboot(found: Found) -> Iterator[Line]:
    """As the condition RebootRequired is judged.

    To do: reboot when nothing uses the node.
    """
    for verdict in table.reboot_required(found.conditions):
        if verdict.status == table.TRUE:
            yield Line("reboot", WARNING, verdict.message, "reboot the node when nothing uses it")
        else:
            yield Line("reboot", PASS, "nothing waits for one")


def disks(found: Found) -> Iterator[Line]:
    """How many, and whether an array lacks a member.

    To do: replace the disk and add it to the array.
    """
    section = found.section(pb.DisksSection)
    if section is None:
        yield Line("disks", UNKNOWN, _missing(found, "disks"))
        return
    degraded = [
        f"{array.name} ({array.level}): {member.name} is {member.state}"
        for array in section.md_arrays
        for member in array.members
        if member.state == "faulty"
    ]
    for words in degraded:
        yield Line("disks", WARNING, words, "replace the disk and add it to the array")
    if not degraded and section.disks:
        size = size_words(sum(disk.bytes for disk in section.disks))
        root = next((disk.name for disk in section.disks if disk.root), None)
        yield Line("disks", PASS, f"{_count(len(section.disks), 'disk')}, {size}" + (f"; root is on {root}" if root else ""))
    elif not degraded:
        yield Line("disks", NOT_APPLICABLE, "no physical disk")


def nics(found: Found) -> Iterator[Line]:
    """How many of which kind.

    To do: see whether a driver is missing.
    """
    section = found.section(pb.NicsSection)
    if section is None:
        yield Line("nics", UNKNOWN, _missing(found, "nics"))
    elif not section.nics:
        yield Line("nics", WARNING, "no physical network port is there", "see whether a driver is missing")
    else:
        kinds = sorted({nic.kind for nic in section.nics})
        words = (f"{sum(nic.kind == kind for nic in section.nics)} {kind}" for kind in kinds)
        yield Line("nics", PASS, f"{_count(len(section.nics), 'port')}: {', '.join(words)}")


def receiver(found: Found) -> Iterator[Line]:
    """Whether each is there, with TLS as this node where it has joined.

    To do: the line names the cause: address, firewall, certificate or clock.
    """
    if found.receivers is None:
        yield Line("receiver", NOT_APPLICABLE, "a recorded host has none, unless one is named")
    elif not found.receivers:
        yield Line("receiver", NOT_APPLICABLE, "none is known before this node has joined")
    for reached in found.receivers or ():
        if reached.cause:
            yield Line("receiver", FAIL, f"{reached.server} cannot be reached: {reached.cause}", reached.todo)
        else:
            how = " over TLS, as this node" if reached.tls else ""
            yield Line("receiver", PASS, f"{reached.server} is reached within {PATIENCE:g} s{how}")


def clock(found: Found) -> Iterator[Line]:
    """The difference that the daemon's session has seen.

    To do: see that NTP runs on both.
    """
    difference = found.daemon.get("clockDifference") if found.daemon else None
    if found.data_dir is None:
        yield Line("clock", NOT_APPLICABLE, "a recorded host has none")
    elif not isinstance(difference, int | float):
        yield Line("clock", NOT_APPLICABLE, "no session has told the receiver's time")
    elif abs(difference) > _CLOCK:
        word = "behind" if difference > 0 else "ahead of"
        yield Line("clock", WARNING, f"this clock is {abs(difference):.1f} s {word} the receiver's", "see that NTP runs on both")
    else:
        yield Line("clock", PASS, f"within {_CLOCK:g} s of the receiver's: {difference:+.1f} s")


def certificate(found: Found) -> Iterator[Line]:
    """Whether this node has joined, and what is left of its certificate's life.

    To do: bcd join; `bcd renew` says why a certificate is not renewed.
    """
    member, ours = found.member, found.member.certificate
    if found.data_dir is None:
        yield Line("certificate", NOT_APPLICABLE, "a recorded host has none")
    elif found.place.config.insecure:
        yield Line("certificate", NOT_APPLICABLE, "with --insecure there is none: a node's id is taken as given")
    elif member.error:
        text, _, todo = member.error.partition("\n")
        yield Line("certificate", FAIL if todo else UNKNOWN, text, todo.strip() or _ROOT)
    elif ours is None or member.identity is None:
        yield Line("certificate", WARNING, "this node has not joined", "bcd join --token-file FILE")
    else:
        yield _life(ours, member.identity.node_id, member.now, found.daemon)


def _life(ours: Certificate, node_id: str, now: float, daemon: Mapping[str, Any] | None) -> Line:
    left = ours.remaining(now)
    facts = {"nodeId": node_id, "notAfter": moment(ours.not_after), "remaining": round(left, 3)}
    if trouble := ours.trouble(now):
        text, _, todo = trouble.partition(": ")
        return Line("certificate", FAIL, f"{node_id}: {text}", todo, facts)
    text = f"{node_id}, {_duration(ours.not_after - now)} left of {_duration(ours.not_after - ours.not_before)}"
    error = ((daemon or {}).get("certificate") or {}).get("renewalError")
    if left < _LITTLE or error:
        why = f"; renewing it failed: {error}" if error else ""
        return Line("certificate", WARNING, f"{text}{why}", "bcd renew says why it is not renewed", facts)
    return Line("certificate", PASS, text, "", facts)


def _missing(found: Found, name: str) -> str:
    failed = found.failed.get(name)
    return f"section {name} is missing: {failed.reason}: {failed.message}" if failed else f"section {name} is missing"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + "s" * (number != 1)


def _duration(seconds: float) -> str:
    """`3 d 4 h`, `12 min`."""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    return f"{days} d {hours % 24} h" if days else f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"
