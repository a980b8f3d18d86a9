-- exclusive: fencing_token for mysql, version 1
-- Where the tokens of new keys begin: past the highest token of any lease row
-- that was pruned. (MySQL has no sequences. Each lease row counts its own
-- tokens, so that keys do not wait for each other.)
-- All that the role of the application needs:
-- GRANT SELECT ON exclusive_token TO app
CREATE TABLE exclusive_token (
    id    TINYINT NOT NULL PRIMARY KEY,
    floor BIGINT  NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET = binary;
