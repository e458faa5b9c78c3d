"""The kernel log's reader: recorded logs (files, FIFOs) and this machine's own /dev/kmsg."""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.kmsg import reader as under_test
from agent.kmsg import xid
from agent.kmsg.reader import KernelLogError, Lost, Reader
from agent.kmsg.record import KERNEL, Record, Unparsed
from tests.agent.kmsg import STREAMS, sidecar
from tests.repetitions import PROOF, within

Item = Record | Lost | Unparsed
KMSG = Path("/dev/kmsg")


def taken(path: Path, after: int | None = None) -> list[Item]:
    """All of a regular file."""

    async def take() -> list[Item]:
        return [item async for item in Reader(path, after).records()]

    return asyncio.run(take())


@contextlib.asynccontextmanager
async def following(path: Path, after: int | None = None) -> AsyncIterator[Callable[[], "asyncio.Future[Item]"]]:
    """A reader that is following; what it yields is a function that waits for the next item, at most 10 s."""
    async with contextlib.aclosing(Reader(path, after).records()) as records:
        yield lambda: asyncio.ensure_future(asyncio.wait_for(anext(records), 10))


def record(seq: int, text: str = "x", priority: int = 6) -> bytes:
    return f"{priority},{seq},{seq * 10},-;{text}\n".encode()


def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    return path


# ---- recorded logs


@pytest.mark.parametrize("stream", STREAMS, ids=lambda path: path.stem)
def test_a_stream_is_what_its_sidecar_says(stream: Path) -> None:
    expected = sidecar(stream)
    items = taken(stream)
    records = [item for item in items if isinstance(item, Record)]
    assert len(records) == expected["records"]
    assert (records[0].seq, records[-1].seq) == (expected["firstSeq"], expected["lastSeq"])
    assert sum(item.count for item in items if isinstance(item, Lost)) == expected["lost"]
    assert not any(isinstance(item, Unparsed) for item in items)
    of_kernel = [found for found in records if found.facility == KERNEL]
    others = [found for found in records if found.facility != KERNEL]
    known = {gpu["busId"] for gpu in expected["gpus"]}
    assert faults(of_kernel, xid.Xid, known) == expected["faults"]
    assert faults(of_kernel, xid.Sxid, known) == expected["sxids"]
    assert faults(others, xid.Xid, known) == expected.get("faultsIfUserspaceTrusted", [])


def faults(records: list[Record], kind: type[xid.Xid] | type[xid.Sxid], known: set[str]) -> list[dict[str, object]]:
    """Distinct faults in the form of a sidecar, by the parser that the daemon uses."""
    found: dict[tuple[int, str], dict[str, object]] = {}
    counts: dict[tuple[int, str], int] = {}
    for entry in records:
        fault = xid.parse(entry.text)
        if not isinstance(fault, kind) or (isinstance(fault, xid.Sxid) and fault.detail):
            continue
        at = (fault.code, fault.bus_id)
        counts[at] = counts.get(at, 0) + 1
        first = {"busId": fault.bus_id, "message": fault.message, "firstSeq": entry.seq}
        if isinstance(fault, xid.Sxid):
            first |= {"sxid": fault.code, "fatal": fault.fatal}
        else:
            first |= {"xid": fault.code, "known": fault.bus_id in known}
        found[at] = found.get(at, first) | {"count": counts[at], "lastSeq": entry.seq}
    return list(found.values())


def test_the_streams_are_all_there() -> None:
    assert len(STREAMS) == 12


def test_a_dictionary_belongs_to_the_record_before_it_however_the_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(b"6,1,1,-;a\n SUBSYSTEM=pci\n DEVICE=+pci:0000:18:00.0\n6,2,2,-;b\n")
    for size in range(20, 60):
        monkeypatch.setattr(under_test, "RECORD_MAX", size)
        first, second = taken(log)
        assert isinstance(first, Record)
        assert isinstance(second, Record)
        assert (first.text, second.text) == ("a", "b")
        assert size < 55 or first.dictionary == {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:18:00.0"}


def test_a_gap_in_the_sequence_is_lost_records() -> None:
    assert [item.count for item in taken(STREAMS[2]) if isinstance(item, Lost)] != []


@pytest.mark.parametrize(
    ("after", "wanted"),
    [
        (None, [5, 6, Lost(3), 10]),
        (0, [Lost(4), 5, 6, Lost(3), 10]),
        (4, [5, 6, Lost(3), 10]),
        (5, [6, Lost(3), 10]),
        (7, [Lost(2), 10]),
        (10, []),
        (99, []),
    ],
)
def test_it_begins_behind_the_last_record_taken(tmp_path: Path, after: int | None, wanted: list[object]) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(record(5) + record(6) + record(10))
    assert [item.seq if isinstance(item, Record) else item for item in taken(log, after)] == wanted


def test_a_sequence_that_begins_again_is_no_loss(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(record(5) + record(1) + record(2))
    assert [item.seq for item in taken(log) if isinstance(item, Record)] == [5, 1, 2]
    assert not any(isinstance(item, Lost) for item in taken(log))


def test_what_is_no_record_is_passed_on_as_it_is(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(record(1) + b"garbage\n" + record(2) + b"6,3,3,-;no newline")
    one, garbage, two, three = taken(log)
    assert garbage == Unparsed(b"garbage")
    assert [found.seq for found in (one, two, three) if isinstance(found, Record)] == [1, 2, 3]


def test_a_line_without_end_takes_no_memory(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(
        b"z" * (5 * under_test.RECORD_MAX) + b"\n" + record(1) + record(2, "y" * (3 * under_test.RECORD_MAX)) + record(3)
    )
    items = taken(log)
    assert [item.seq for item in items if isinstance(item, Record)] == [1, 2, 3]
    assert max(len(item.text) for item in items if isinstance(item, Record)) <= under_test.RECORD_MAX
    assert sum(isinstance(item, Unparsed) for item in items) == 1


@given(st.binary(max_size=500))
def test_no_bytes_stop_the_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    log = tmp_path_factory.mktemp("bytes") / "kmsg"
    log.write_bytes(data + b"\n" + record(7, "still here"))
    last = taken(log)[-1]
    assert isinstance(last, Record)
    assert last.text == "still here"


def test_other_tasks_run_while_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(b"".join(record(n) for n in range(2000)))

    async def turns(after: int | None) -> int:
        done = 0

        async def other() -> None:
            nonlocal done
            while True:
                done += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        async for _ in Reader(log, after).records():
            pass
        task.cancel()
        return done

    assert asyncio.run(turns(None)) > 20
    assert asyncio.run(turns(2000)) > 20  # when all of it is skipped, too


# ---- a FIFO


def test_a_fifo_is_followed_over_its_writers(tmp_path: Path) -> None:
    path = fifo(tmp_path)

    async def follow() -> list[Item]:
        async with following(path) as item:
            waiting = item()
            await asyncio.sleep(0.05)
            assert not waiting.done()
            path.write_bytes(record(1))
            items = [await waiting]
            path.write_bytes(record(2) + record(5))
            return [*items, await item(), await item(), await item()]

    assert [found.seq if isinstance(found, Record) else found for found in asyncio.run(follow())] == [1, 2, Lost(2), 5]


def test_a_record_in_a_fifo_does_not_wait_for_the_next_one(tmp_path: Path) -> None:
    path = fifo(tmp_path)

    async def follow() -> float:
        async with following(path) as item:
            waiting = item()
            await asyncio.sleep(0.05)
            begin = time.monotonic()
            path.write_bytes(record(1))
            await waiting
            return time.monotonic() - begin

    assert min(asyncio.run(follow()) for _ in range(3)) < within(0.05)


def test_half_a_line_in_a_fifo_waits_for_its_other_half(tmp_path: Path) -> None:
    path = fifo(tmp_path)

    async def follow() -> Item:
        async with following(path) as item:
            waiting = item()
            await asyncio.sleep(0.02)
            path.write_bytes(b"6,1,1,-;half")
            await asyncio.sleep(0.05)
            assert not waiting.done()
            path.write_bytes(b" and half\n DEVICE=late\n")
            return await waiting

    found = asyncio.run(follow())
    assert isinstance(found, Record)
    assert found.text == "half and half"


def test_a_dictionary_that_comes_late_is_passed_over(tmp_path: Path) -> None:
    path = fifo(tmp_path)

    async def follow() -> list[Item]:
        async with following(path) as item:
            waiting = item()
            await asyncio.sleep(0.02)
            path.write_bytes(record(1))
            first = await waiting
            path.write_bytes(b" SUBSYSTEM=pci\n" + record(2))
            return [first, await item()]

    assert [found.seq for found in asyncio.run(follow()) if isinstance(found, Record)] == [1, 2]


@pytest.mark.parametrize("waiting", [True, False])
def test_closing_gives_the_descriptor_back(tmp_path: Path, waiting: bool) -> None:
    path = fifo(tmp_path)

    def open_files() -> int:
        return sum(1 for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == str(path))

    async def follow() -> None:
        records = Reader(path).records()
        first = asyncio.ensure_future(anext(records))
        await asyncio.sleep(0.02)
        assert open_files() == 1
        if waiting:
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await first
        else:
            path.write_bytes(record(1))
            await first
        await records.aclose()
        assert open_files() == 0

    asyncio.run(follow())


# ---- what stands in the way


def failed(path: Path) -> KernelLogError:
    with pytest.raises(KernelLogError) as caught:
        taken(path)
    assert str(path) in str(caught.value)
    return caught.value


def test_a_log_that_is_not_there_is_absent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "kmsg", tmp_path / "file/kmsg"):
        assert failed(path).reason == "absent"


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """A log that its owner let nobody read."""
    log = tmp_path / "kmsg"
    log.write_bytes(record(1))
    log.chmod(0)
    return log


@pytest.fixture
def nobody() -> Iterator[None]:
    """As an ordinary user: root loses what lets it read anything."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    yield
    os.seteuid(me)


def test_a_log_that_may_not_be_read_is_named_so(hidden: Path, nobody: None) -> None:
    error = failed(hidden)
    assert error.reason == "permission"
    assert "CAP_SYSLOG" in str(error)


def test_the_kernel_log_that_may_not_be_read_is_named_so(nobody: None) -> None:
    if not KMSG.exists() or Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "1":
        pytest.skip("this machine lets everyone read its kernel log, or has none")
    assert failed(KMSG).reason == "permission"


@pytest.mark.parametrize(("path", "happened"), [("/dev/null", "it ended"), ("/", os.strerror(errno.EISDIR))])
def test_a_log_that_gives_nothing_has_ended(path: str, happened: str) -> None:
    error = failed(Path(path))
    assert error.reason == "ended"
    assert happened in str(error)


def once_failing(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The first read fails so."""
    real = os.read
    errors = [OSError(number, os.strerror(number))]

    def read(fd: int, size: int) -> bytes:
        if errors:
            raise errors.pop()
        return real(fd, size)

    monkeypatch.setattr(os, "read", read)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EINVAL])
def test_a_read_that_gives_no_record_does_not_end_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    path = fifo(tmp_path)

    async def follow() -> list[Item]:
        async with following(path, after=1) as item:
            once_failing(monkeypatch, number)
            waiting = item()
            await asyncio.sleep(0.02)
            path.write_bytes(record(4))
            return [await waiting, await item()]

    lost, found = asyncio.run(follow())
    assert lost == Lost(2)
    assert isinstance(found, Record)


def test_any_other_error_ends_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "kmsg"
    log.write_bytes(record(1))
    once_failing(monkeypatch, errno.EIO)
    error = failed(log)
    assert error.reason == "ended"
    assert os.strerror(errno.EIO) in str(error)


# ---- this machine's


def write_line(line: str) -> None:
    """One record; through a descriptor of its own, since the kernel takes 10 of each in 5 s."""
    fd = os.open(KMSG, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, line.encode() + b"\n")
    finally:
        os.close(fd)


@pytest.fixture
def ring() -> None:
    try:
        os.close(os.open(KMSG, os.O_RDWR))
    except OSError as error:
        pytest.skip(f"{KMSG}: {error.strerror}")


def token() -> str:
    return f"bcd-test-{os.getpid()}-{time.monotonic_ns()}"


@pytest.mark.usefixtures("ring")
def test_the_kernels_own_log_is_read_and_followed() -> None:
    before, during = token(), token()

    async def follow() -> list[Record]:
        write_line(f"<12>{before}")
        found: list[Record] = []
        async with following(KMSG) as item:
            while not found or during not in found[-1].text:
                entry = await item()
                if isinstance(entry, Record) and (before in entry.text or during in entry.text):
                    found.append(entry)
                    if len(found) == 1:
                        asyncio.get_running_loop().call_later(0.1, write_line, during)
        return found

    first, second = asyncio.run(follow())
    assert (first.text, second.text) == (before, during)
    assert (first.facility, first.level) == (1, 4)
    assert second.facility == 1  # the kernel gives no process facility 0
    assert first.seq < second.seq


@pytest.mark.usefixtures("ring")
def test_nobody_but_the_kernel_writes_as_the_kernel() -> None:
    forged = token()

    async def follow() -> Record:
        write_line(f"<4>NVRM: Xid (PCI:0000:18:00): 79, {forged}")
        async with following(KMSG) as item:
            while True:
                entry = await item()
                if isinstance(entry, Record) and forged in entry.text:
                    return entry

    found = asyncio.run(follow())
    assert isinstance(xid.parse(found.text), xid.Xid)
    assert found.facility == 1


@pytest.mark.usefixtures("ring")
def test_a_record_that_does_not_fit_is_lost_and_the_next_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """EINVAL, which passes over the record."""
    marks = [token(), token(), token()]
    monkeypatch.setattr(under_test, "RECORD_MAX", 200)

    async def follow() -> list[Item]:
        write_line(marks[0])
        write_line(marks[1] + "x" * 300)
        write_line(marks[2])
        found: list[Item] = []
        async with following(KMSG) as item:
            while not found or not (isinstance(found[-1], Record) and found[-1].text == marks[2]):
                entry = await item()
                if found or (isinstance(entry, Record) and entry.text == marks[0]):
                    found.append(entry)
        return found

    items = asyncio.run(follow())
    assert not any(isinstance(item, Record) and marks[1] in item.text for item in items)
    assert sum(item.count for item in items if isinstance(item, Lost)) >= 1


@pytest.mark.skipif(not PROOF, reason="overwrites the kernel log of this machine: make proof-watch")
@pytest.mark.usefixtures("ring")
def test_an_overrun_counts_what_was_lost_and_goes_on() -> None:
    """EPIPE, with as many records as the ring's jump says."""
    last = token()

    async def follow() -> tuple[Record, Lost, Record]:
        async with following(KMSG) as item:
            first = await item()
            assert isinstance(first, Record)
            for n in range(200_000):
                write_line(f"<15>{n} " + "x" * 900)
                if n % 500 == 499 and oldest() > first.seq + 1:
                    break
            write_line(last)
            lost = await item()
            assert isinstance(lost, Lost)
            after = await item()
            assert isinstance(after, Record)
            entry: Item = after
            while not (isinstance(entry, Record) and entry.text == last):
                entry = await item()
            return first, lost, after

    first, lost, after = asyncio.run(follow())
    assert lost.count == after.seq - first.seq - 1 > 0


def oldest() -> int:
    """The sequence number of the oldest record in the ring."""
    with open(KMSG, "rb", buffering=0) as log:
        data = log.read(under_test.RECORD_MAX)
        return int(data.split(b",")[1])
