-- exclusive: fencing_mark for postgres, version 1
-- Marks: for each key the highest token that this destination has accepted. And
-- its grant, since an equal token of another grant is refused: two issuers, or
-- one restored from an older copy, can hand the same number out twice.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON exclusive_mark TO app
CREATE TABLE exclusive_mark (
    mark_key bytea  NOT NULL PRIMARY KEY,
    token    bigint NOT NULL,
    grant_id text   NOT NULL,
    finished bigint NOT NULL -- 1: the grant's last write is committed
) WITH (fillfactor = 70);
