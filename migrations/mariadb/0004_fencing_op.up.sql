-- exclusive: fencing_op for mariadb, version 1
-- Operations that were applied once, with the result to replay. Rows are
-- written in the transaction that applies them. The hash tells a repeated
-- operation from another one under the same id.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON exclusive_op TO app
CREATE TABLE exclusive_op (
    op_id      VARBINARY(200) NOT NULL PRIMARY KEY,
    payload    BINARY(32)     NOT NULL COMMENT 'SHA-256 of the payload',
    result     LONGBLOB           NULL COMMENT 'NULL only inside the applying transaction',
    created_at BIGINT         NOT NULL COMMENT 'microseconds since 1970'
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary;
