-- exclusive: fencing_mark for mariadb, version 1
-- Marks: for each key the highest token that this destination has accepted. And
-- its grant, since an equal token of another grant is refused: two issuers, or
-- one restored from an older copy, can hand the same number out twice.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON exclusive_mark TO app
CREATE TABLE exclusive_mark (
    mark_key VARBINARY(200) NOT NULL PRIMARY KEY,
    token    BIGINT         NOT NULL,
    grant_id VARBINARY(64)  NOT NULL,
    finished BIGINT         NOT NULL COMMENT '1: the last write of the grant is committed'
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary;
