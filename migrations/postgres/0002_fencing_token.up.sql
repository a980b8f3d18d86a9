-- exclusive: fencing_token for postgres, version 1
-- The sequence that tokens are drawn from. CACHE 1: with a larger cache each
-- connection hands out numbers of its own block, and a later grant could get a
-- smaller token than an earlier.
-- All that the role of the application needs:
-- GRANT USAGE ON SEQUENCE exclusive_token TO app
CREATE SEQUENCE exclusive_token AS bigint MINVALUE 1 NO CYCLE CACHE 1;
