"""A3, sentence by sentence, with both ends."""

from bettercompute.agent.v1 import session_pb2 as pb

from agent.session import machine as agent
from tests.contract.wire import Store, Wire, inventory

FIRST = inventory(cpu=b"cpu", gpus=b"gpus", memory=b"")
SECOND = inventory(cpu=b"cpu", gpus=b"one less", memory=b"")


def test_a_first_inventory_travels_whole_after_the_first_report() -> None:
    wire = Wire()
    wire.collected(FIRST)
    wire.connect()
    asked = ["-> Request"]  # by the letter of A3: the report's digest differed, and the offer was not here yet
    offered = ["Offer", "-> Request", *["Chunk"] * 3, "-> Result applied"]
    assert wire.log == ["Hello", "-> Welcome", "Report", *asked, *offered]
    assert wire.store.applied == FIRST.digest
    assert wire.state.is_applied


def test_a_changed_section_travels_alone() -> None:
    wire = Wire()
    wire.collected(FIRST)
    wire.connect()
    wire.body_bytes = 0
    wire.collected(SECOND)
    assert wire.body_bytes == len(b"one less")
    assert wire.store.applied == SECOND.digest


def test_after_a_restart_of_the_receiver_only_the_digest_is_said() -> None:
    wire = Wire()
    wire.collected(FIRST)
    wire.connect()
    wire.log.clear()
    wire.connect(previous_epoch=1)
    assert wire.log == ["Hello", "-> Welcome", "Report"]


def test_a_second_node_with_identical_sections_sends_no_bytes() -> None:
    store = Store()
    one = Wire(store)
    one.collected(FIRST)
    one.connect()
    other = Wire(Store(tenant=store.tenant))
    other.collected(FIRST)
    other.connect()
    assert other.body_bytes == 0
    assert other.store.applied == FIRST.digest


def test_an_advisory_digest_counts_as_applied() -> None:
    wire = Wire(Store(applied=f"advisory:{FIRST.digest}"))
    wire.collected(FIRST)
    wire.connect()
    assert "Offer" not in wire.log


def test_reports_go_each_interval_and_ask_for_nothing() -> None:
    wire = Wire()
    wire.collected(FIRST)
    wire.connect()
    wire.log.clear()
    for _ in range(3):
        wire.later(30.0)
    assert wire.log == ["Report"] * 3


def test_a_receiver_that_lost_its_database_asks_on_the_next_report() -> None:
    wire = Wire()
    wire.collected(FIRST)
    wire.connect()
    wire.store.applied = wire.gate.applied = None
    wire.log.clear()
    wire.later(30.0)
    assert wire.log == ["Report", "-> Request", "Offer", "-> Request", "-> Result applied"]


def test_a_refused_inventory_is_collected_once_more_and_then_held_for_an_hour() -> None:
    wire = Wire(Store(refuse="gpus"))
    wire.collected(FIRST)
    wire.connect()
    assert [note for note in wire.notes if isinstance(note, agent.CollectAgain)] == [agent.CollectAgain("gpus", "told to")]
    wire.collected(FIRST)
    assert wire.log.count("-> Result refused") == 2
    for _ in range(119):
        wire.later(30.0)
    assert wire.log.count("-> Result refused") == 2
    wire.store.refuse = ""
    wire.later(60.0)
    assert wire.store.applied == FIRST.digest


def test_a_newer_offer_replaces_one_under_way() -> None:
    wire = Wire()
    wire.connect()
    wire.agent(agent.InventoryChanged(FIRST))  # offered, its answer not yet read
    wire.collected(SECOND)
    assert wire.store.applied == SECOND.digest
    assert wire.state.is_applied


def test_a_section_larger_than_a_chunk_arrives_whole() -> None:
    large = inventory(cpu=bytes(range(256)) * 12_000)
    wire = Wire()
    wire.collected(large)
    wire.connect()
    assert wire.log.count("Chunk") == 3
    assert wire.store.applied == large.digest


def test_a_section_over_the_limit_is_refused_by_name_and_the_session_goes_on() -> None:
    wire = Wire()
    wire.collected(inventory(cpu=bytes((8 << 20) + 1)))
    wire.connect()
    assert "-> Result refused" in wire.log
    assert [limit.name for limit in wire.met] == ["bytes a section"]
    wire.collected(FIRST)
    assert wire.store.applied == FIRST.digest


def test_too_many_offers_wait_and_none_is_lost() -> None:
    wire = Wire()
    wire.connect()
    for number in range(8):
        wire.collected(inventory(cpu=bytes([number])))
    last = inventory(cpu=b"last")
    wire.collected(last)
    assert "-> Result retry" in wire.log
    for _ in range(60):
        wire.later(30.0)
    assert wire.store.applied == last.digest


def test_messages_fields_and_enum_values_of_newer_peers_change_nothing() -> None:
    wire = Wire()
    wire.collected(FIRST)
    wire.connect()
    unknown_message = b"\xfa\x07\x02hi"  # field 127, length-delimited: no message that anybody knows today
    wire.up.append(unknown_message)
    wire.up.append(
        pb.SessionRequest(status_report=pb.StatusReport(seq=9, digest=FIRST.digest)).SerializeToString() + unknown_message
    )
    wire.down.append(unknown_message)
    result = pb.InventoryResult(digest="of another offer")
    result.status = 99  # type: ignore[assignment]
    wire.down.append(pb.SessionResponse(inventory_result=result).SerializeToString())
    wire.run()
    assert wire.state.is_applied
    assert wire.gate.phase.value == "open"


def test_another_major_protocol_ends_the_session_with_its_reason() -> None:
    wire = Wire()
    wire.connect()
    wire.up.append(pb.SessionRequest(hello=pb.Hello(protocol_version="0.9")).SerializeToString())
    wire.run()
    assert wire.gate.phase.value == "open", "a newer minor is welcome"
    other = Wire()
    other.gate = type(wire.gate)("node_x", other.rates, 30.0, other.met.append)
    other._upward(pb.SessionRequest(hello=pb.Hello(protocol_version="1.0")).SerializeToString())
    assert pb.SessionResponse.FromString(other.down[0]).session_end.reason == pb.SESSION_END_REASON_PROTOCOL_UNSUPPORTED
