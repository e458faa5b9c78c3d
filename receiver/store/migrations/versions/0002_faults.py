"""Counts of XIDs and SXids, so that a report that repeats them tells nothing twice."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """A table of its own: device_health is of open quarantines, and most faults open none."""
    op.execute(
        """
        CREATE TABLE node_faults (
          node_id TEXT NOT NULL,
          boot_id TEXT NOT NULL,
          device_id TEXT NOT NULL,
          code TEXT NOT NULL,
          tenant_id TEXT NOT NULL,
          count BIGINT NOT NULL,
          told BIGINT NOT NULL,
          since TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
          CONSTRAINT pk_node_faults PRIMARY KEY (node_id, boot_id, device_id, code),
          CONSTRAINT fk_node_faults_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
        )
        """
    )
