CREATE TABLE webhooks (
  name TEXT NOT NULL,
  xid BIGINT DEFAULT '0'::bigint NOT NULL,
  seq BIGINT DEFAULT '0'::bigint NOT NULL,
  size BIGINT DEFAULT '100'::bigint NOT NULL,
  failures BIGINT DEFAULT '0'::bigint NOT NULL,
  refusals BIGINT DEFAULT '0'::bigint NOT NULL,
  next_at TIMESTAMP WITH TIME ZONE,
  error TEXT DEFAULT '' NOT NULL,
  delivered BIGINT DEFAULT '0'::bigint NOT NULL,
  skipped BIGINT DEFAULT '0'::bigint NOT NULL,
  CONSTRAINT pk_webhooks PRIMARY KEY (name)
);
