"""A chapter of the story (tests/story.py): a node is repaired without a person (SPEC B8). Its `systemctl` is a script."""

from typing import Any

from tests import hosts_catalog as hosts
from tests.end_to_end.rebooting import machine
from tests.receiver import placement
from tests.story import Story

NAME, SEED, BROKEN, BOOKED = "h100-d", 4, 1, 3


def a_node_is_repaired(story: Story) -> None:
    """XID 79: the reboot waits for the last booking, happens once, and is proven by what the node collects afterwards."""
    base = story.run.base / "hosts" / NAME
    base.mkdir(parents=True)
    made = machine(base, "h100-sxm-8")
    hosts.another_machine(made.host, SEED)
    story.hosts[NAME] = made.host
    daemon = story.run.daemon(NAME, made.host, made.env)
    node = story.nodes[NAME] = story.run.applied(NAME)["nodeId"]
    pool = story.run.api("pools.create", name="repaired", policy='{"disruptionBudget": 1}', reason="demo")["id"]
    story.run.api("nodes.move", nodeId=node, poolId=pool, reason="demo")
    story.until("8 bookable GPUs", lambda: len(story.bookable(NAME)) == 8)
    with story.database() as tx:
        one = next(one for one in placement.find(tx, 1000) if one.atom_id == hosts.gpu_of(made.host, BOOKED)[0])
        assert placement.book(tx, "demo-repair", one)
    story.say("h100-d is in a pool that may repair; GPU 1 falls off the bus while a customer has GPU 3: the reboot waits")
    story.xid(NAME, BROKEN, 79)
    story.until("the repair to wait", lambda: _run(story, node).get("state") == "waiting")
    assert made.reboots == 0
    story.show("nodes.why", nodeId=node)
    story.say("the booking ends: the node drains, reboots once, and proves itself")
    with story.database() as tx:
        placement.end(tx, "demo-repair")
    story.until("the node to go down", lambda: made.reboots == 1)
    made.wait_until_up()
    daemon.stop()
    daemon.start()
    story.until("the repair to be proven", lambda: _run(story, node).get("state") == "succeeded")
    story.until("8 bookable GPUs", lambda: len(story.bookable(NAME)) == 8)
    assert (made.reboots, story.reasons(NAME)) == (1, [])
    story.show("remediation.get", runId=_run(story, node)["id"])


def _run(story: Story, node: str) -> Any:
    runs = story.run.api("remediation.list", nodeId=node)["runs"]
    assert len(runs) <= 1, runs
    return runs[0] if runs else {}
