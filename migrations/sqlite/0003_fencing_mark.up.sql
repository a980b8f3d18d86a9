-- exclusive: fencing_mark for sqlite, version 1
-- Marks: for each key the highest token that this destination has accepted. And
-- its grant, since an equal token of another grant is refused: two issuers, or
-- one restored from an older copy, can hand the same number out twice.
CREATE TABLE exclusive_mark (
    mark_key BLOB    NOT NULL PRIMARY KEY,
    token    INTEGER NOT NULL,
    grant_id TEXT    NOT NULL,
    finished INTEGER NOT NULL -- 1: the grant's last write is committed
) WITHOUT ROWID;
