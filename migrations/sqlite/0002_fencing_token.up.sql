-- exclusive: fencing_token for sqlite, version 1
-- Where the tokens of new keys begin: past the highest token of any lease row
-- that was pruned. (Each lease row counts its own tokens.)
CREATE TABLE exclusive_token (
    id    INTEGER NOT NULL PRIMARY KEY,
    floor INTEGER NOT NULL
);
