-- exclusive: fencing_lease for postgres, version 1
-- Leases: one row per key. A row is never deleted while a destination may
-- remember one of its tokens: the token of the next grant is drawn past it.
-- Times are microseconds since 1970 on this server's clock: integers mean the
-- same to every driver and time zone.
-- No index on expires_at: renewal changes it, and an index would cost every
-- renewal a second write. fillfactor leaves room for those updates on the page.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON exclusive_lease TO app
CREATE TABLE exclusive_lease (
    lease_key   bytea  NOT NULL PRIMARY KEY, -- bytes: no collation can merge two keys
    grant_id    text   NOT NULL,             -- who: unique to each grant
    holder      text   NOT NULL,             -- a name for operators
    token       bigint NOT NULL,             -- rises with each grant of the key
    attempt     bigint NOT NULL,             -- 0: ended in good order
    acquired_at bigint NOT NULL,
    expires_at  bigint NOT NULL
) WITH (fillfactor = 70);
