ALTER TABLE sessions ADD COLUMN certificate TEXT;
CREATE INDEX ix_sessions_alternations ON sessions (node_id, started_at) WHERE alternation;

CREATE TABLE certificates (
  fingerprint TEXT NOT NULL,
  node_id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  issued_by TEXT NOT NULL,
  issued_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  not_before TIMESTAMP WITH TIME ZONE DEFAULT bc_clock() NOT NULL,
  not_after TIMESTAMP WITH TIME ZONE DEFAULT bc_clock() NOT NULL,
  revoked_at TIMESTAMP WITH TIME ZONE,
  revoked_reason TEXT,
  CONSTRAINT pk_certificates PRIMARY KEY (fingerprint),
  CONSTRAINT fk_certificates_node_id FOREIGN KEY(node_id) REFERENCES nodes (id)
);
CREATE INDEX ix_certificates_good ON certificates (node_id) WHERE revoked_at IS NULL;

CREATE TABLE api_tokens (
  id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  hash TEXT NOT NULL,
  permissions JSONB DEFAULT '[]'::jsonb NOT NULL,
  name TEXT DEFAULT '' NOT NULL,
  created_by TEXT DEFAULT '' NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  expires_at TIMESTAMP WITH TIME ZONE DEFAULT bc_clock() NOT NULL,
  revoked_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_api_tokens PRIMARY KEY (id)
);
CREATE INDEX ix_api_tokens_tenant_id_id ON api_tokens (tenant_id, id);

CREATE TABLE join_tokens (
  id TEXT NOT NULL,
  tenant_id TEXT NOT NULL,
  hash TEXT NOT NULL,
  pool_id TEXT,
  kind TEXT DEFAULT 'host' NOT NULL,
  node_id TEXT,
  uses BIGINT DEFAULT '1'::bigint NOT NULL,
  used BIGINT DEFAULT '0'::bigint NOT NULL,
  created_by TEXT DEFAULT '' NOT NULL,
  created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
  expires_at TIMESTAMP WITH TIME ZONE DEFAULT bc_clock() NOT NULL,
  revoked_at TIMESTAMP WITH TIME ZONE,
  CONSTRAINT pk_join_tokens PRIMARY KEY (id),
  CONSTRAINT fk_join_tokens_node_id FOREIGN KEY(node_id) REFERENCES nodes (id),
  CONSTRAINT ck_join_tokens_kind CHECK (kind IN ('host', 'site-agent'))
);
CREATE INDEX ix_join_tokens_tenant_id_id ON join_tokens (tenant_id, id);
