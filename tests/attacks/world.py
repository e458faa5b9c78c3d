"""Two tenants in one database: attackers have nodes and tokens of `acme`; of `canary` nothing may be seen or changed."""

from dataclasses import replace

import psycopg
from bettercompute.agent.v1 import inventory_pb2 as pb
from bettercompute.contract.sections import encode

from receiver.apply.inventory import apply_inventory
from receiver.apply.session import hello
from receiver.ids import mint
from tests.receiver.builders import FACTS, gpu, gpus, offer
from tests.receiver.live import Live

ACME, CANARY = "acme", "canary"
SECRET = "canary-machine"  # hostname of the canary's node


def node(database: str, tenant: str, number: int) -> str:
    """A new node of the tenant with GPU `number`, inventory applied; its id."""
    node_id = mint("node")
    facts = replace(FACTS, tenant_id=tenant, boot_id=f"boot-{number}")
    with psycopg.connect(database) as tx:
        hello(tx, node_id, facts)
        name = SECRET if tenant == CANARY else f"gpu-{number}"
        bodies = {"gpus": encode(gpus(gpu(number))), "os": encode(pb.OsSection(hostname=name))}
        assert apply_inventory(tx, node_id, offer(bodies), bodies).status == "applied"
        tx.execute("UPDATE nodes SET connected = false")  # no loop of the receiver's has anything to do with them
    return node_id


async def pool(served: Live, tenant: str, name: str) -> str:
    """A new pool of the tenant; its id."""
    made: str = (await served.api("pools.create", name=name, tenantId=tenant))["id"]
    return made


def is_of(tenant: str, row: str) -> bool:
    """Whether a row, as untouched.rows() has it, is of the tenant."""
    return f'"tenant_id": "{tenant}"' in row
