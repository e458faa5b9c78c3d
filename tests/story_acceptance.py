"""A chapter of the story (tests/story.py): a node proves itself before it is in service (SPEC B7)."""

import json
import shutil
from typing import Any

from tests import hosts_catalog as hosts
from tests.story import Story

NAME, SEED, GPUS, PULLED = "h100-c", 3, 8, 5
POLICY = {"acceptance": [{"kind": "diag.nvml"}], "expect": {"gpuCount": GPUS}}


def a_node_proves_itself(story: Story) -> None:
    """A host with a GPU too few does not pass; with the GPU in its place it does, once it is told to try again."""
    pool = story.run.api("pools.create", name="proven", policy=json.dumps(POLICY), reason="demo")["id"]
    directory = story.run.base / "hosts" / NAME / "h100-sxm-8"
    story.add(NAME, "h100-sxm-8", SEED)
    story.run.daemons[NAME].stop()
    whole = shutil.copytree(directory, directory.with_name(f"{NAME}-whole"), symlinks=True)
    hosts.new_boot(whole)  # that of the boot with a GPU too few
    hosts.drop_gpu(story.hosts[NAME], PULLED)
    story.reboot(NAME)
    story.say("h100-c comes with 7 GPUs into a pool whose nodes have to pass diag.nvml with 8")
    story.run.api("nodes.move", nodeId=story.nodes[NAME], poolId=pool, reason="demo")
    failed = _ordered(story, "prove yourself", "failed")
    assert failed["reason"] == "diag.nvml:gpu.count", failed
    assert story.bookable(NAME) == []
    story.show("acceptance.get", nodeId=story.nodes[NAME])
    story.show("nodes.why", nodeId=story.nodes[NAME])
    story.say("the GPU is put into its place; nothing but an order begins another attempt")
    story.run.daemons[NAME].stop()
    shutil.rmtree(directory)
    shutil.move(whole, directory)
    story.reboot(NAME)
    assert story.run.api("acceptance.get", nodeId=story.nodes[NAME])["state"] == "failed"
    assert _ordered(story, "the GPU is seated", "passed")["status"] == "adopted"
    story.until("8 bookable GPUs", lambda: len(story.bookable(NAME)) == GPUS)
    story.show("acceptance.get", nodeId=story.nodes[NAME])


def _ordered(story: Story, reason: str, state: str) -> Any:
    """nodes.adopt, and the attempt once it is in this state."""
    node = story.nodes[NAME]
    story.run.api("nodes.adopt", nodeId=node, reason=reason)
    story.until(f"the attempt to have {state}", lambda: story.run.api("acceptance.get", nodeId=node)["state"] == state)
    return story.run.api("acceptance.get", nodeId=node)
