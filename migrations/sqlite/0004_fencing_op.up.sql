-- exclusive: fencing_op for sqlite, version 1
-- Operations that were applied once, with the result to replay. Rows are
-- written in the transaction that applies them. The hash tells a repeated
-- operation from another one under the same id.
CREATE TABLE exclusive_op (
    op_id      BLOB    NOT NULL PRIMARY KEY,
    payload    BLOB    NOT NULL, -- SHA-256 of the payload
    result     BLOB,             -- NULL only inside the applying transaction
    created_at INTEGER NOT NULL  -- microseconds since 1970
) WITHOUT ROWID;
