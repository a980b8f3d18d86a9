-- exclusive: fencing_op for postgres, version 1
-- Operations that were applied once, with the result to replay. Rows are
-- written in the transaction that applies them. The hash tells a repeated
-- operation from another one under the same id.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON exclusive_op TO app
CREATE TABLE exclusive_op (
    op_id      bytea  NOT NULL PRIMARY KEY,
    payload    bytea  NOT NULL, -- SHA-256 of the payload
    result     bytea,           -- NULL only inside the applying transaction
    created_at bigint NOT NULL  -- microseconds since 1970
);
