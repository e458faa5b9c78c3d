"""GPUs are remembered by bus id over boots; this boot wins."""

from bettercompute.agent.v1 import inventory_pb2 as pb

from agent.known_gpus import Remembered, gpus, learn

A, B = "00000000:18:00.0", "00000000:2A:00.0"


def gpu(uuid: str, bus_id: str, **more: object) -> pb.Gpu:
    return pb.Gpu(uuid=uuid, bus_id=bus_id, device_id="2330", state=str(more.pop("state", "ok")), **more)  # type: ignore[arg-type]


def section(*found: pb.Gpu, functions: dict[str, str] | None = None) -> pb.GpusSection:
    shown = functions if functions is not None else {g.bus_id: g.device_id for g in found}
    return pb.GpusSection(gpus=found, pci_functions=[pb.PciFunction(bus_id=b, device_id=d) for b, d in shown.items()])


def uuids(known: dict[str, Remembered]) -> dict[str, str]:
    return {bus_id: remembered.gpu.uuid for bus_id, remembered in known.items()}


def test_this_boot_wins_and_an_earlier_one_stands_where_it_shows_nothing() -> None:
    known = learn({}, section(gpu("GPU-1", A), gpu("GPU-2", B)), "boot-1")
    later = learn(known, section(gpu("GPU-9", A)), "boot-2")
    assert uuids(later) == {A: "GPU-9", B: "GPU-2"}
    assert (later[A].boot_id, later[B].boot_id) == ("boot-2", "boot-1")


def test_a_lost_or_assigned_gpu_is_remembered_as_it_was() -> None:
    known = learn({}, section(gpu("GPU-1", A, name="H100"), gpu("GPU-2", B)), "boot-1")
    later = learn(known, section(gpu("GPU-1", A, state="lost"), gpu("GPU-2", B, assigned=True)), "boot-2")
    assert later == known


def test_a_lost_gpu_is_learnt_where_nothing_or_another_is_remembered() -> None:
    lost = section(gpu("GPU-1", A, state="lost"))
    assert uuids(learn({}, lost, "boot-1")) == {A: "GPU-1"}
    assert uuids(learn(learn({}, section(gpu("GPU-9", A)), "boot-1"), lost, "boot-2")) == {A: "GPU-1"}


def test_a_section_without_nvml_takes_nothing_away() -> None:
    known = learn({}, section(gpu("GPU-1", A)), "boot-1")
    assert learn(known, section(functions={A: "2330"}), "boot-2") == known
    assert learn(known, section(functions={}), "boot-2") == known


def test_another_model_on_the_bus_is_another_gpu() -> None:
    known = learn({}, section(gpu("GPU-1", A)), "boot-1")
    assert learn(known, section(functions={A: "20b2"}), "boot-2") == {}


def test_a_gpu_that_moved_is_in_one_place() -> None:
    known = learn({}, section(gpu("GPU-1", A)), "boot-1")
    assert uuids(learn(known, section(gpu("GPU-1", B)), "boot-2")) == {B: "GPU-1"}


def test_a_gpu_without_identity_is_not_remembered() -> None:
    nameless = pb.GpusSection(gpus=[pb.Gpu(bus_id=A, state="ok"), pb.Gpu(uuid="GPU-1", state="ok")])
    assert learn({}, nameless, "boot-1") == {}


def test_the_kernel_log_names_gpus_that_no_inventory_of_this_boot_has_shown() -> None:
    known = learn({}, section(gpu("GPU-1", A, name="H100"), gpu("GPU-2", B)), "boot-1")
    C = "00000000:3B:00.0"
    assert [(g.bus_id, g.uuid, g.name) for g in gpus(known, {C: "GPU-3"})] == [
        (A, "GPU-1", "H100"), (B, "GPU-2", ""), (C, "GPU-3", ""),
    ]  # fmt: skip
    assert [(g.bus_id, g.uuid, g.name) for g in gpus(known, {B: "GPU-1"})] == [(A, "GPU-1", "H100"), (B, "GPU-1", "H100")]
    assert gpus(known, {}) == gpus(known)


def test_the_collector_gets_them_in_the_order_of_bus_ids() -> None:
    known = learn({}, section(gpu("GPU-2", B), gpu("GPU-1", A)), "boot-1")
    assert [g.uuid for g in gpus(known)] == ["GPU-1", "GPU-2"]
