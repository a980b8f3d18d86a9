-- exclusive: fencing_lease for mysql, version 1
-- Leases: one row per key. A row is never deleted while a destination may
-- remember one of its tokens: it is also the key's token counter.
-- VARBINARY: no collation, case or padding rule can merge two keys.
-- Times are microseconds since 1970 on this server's clock: integers mean the
-- same to every DSN (parseTime, loc) and session time zone, and pass 2038.
-- No index on expires_at: renewal changes it, and an index would cost every
-- renewal a second write.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON exclusive_lease TO app
CREATE TABLE exclusive_lease (
    lease_key   VARBINARY(200) NOT NULL PRIMARY KEY,
    grant_id    VARBINARY(64)  NOT NULL COMMENT 'who: unique to each grant',
    holder      VARBINARY(200) NOT NULL COMMENT 'a name for operators',
    token       BIGINT         NOT NULL COMMENT 'rises with each grant of the key',
    attempt     BIGINT         NOT NULL COMMENT '0: ended in good order',
    acquired_at BIGINT         NOT NULL,
    expires_at  BIGINT         NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary;
