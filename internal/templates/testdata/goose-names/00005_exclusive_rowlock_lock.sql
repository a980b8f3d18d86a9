-- exclusive: rowlock_lock for postgres, version 1, prefix "app_", schema "Tenant-1"
-- +goose Up
-- +goose StatementBegin
-- Locks: a row per key, for keys that are no rows of the application's own. A
-- row says nothing: whoever has locked it holds the key. Rows are made when a
-- key is first used and may be deleted whenever nobody uses the key.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON "Tenant-1"."app_lock" TO app
CREATE TABLE "Tenant-1"."app_lock" (
    lock_key bytea NOT NULL PRIMARY KEY -- bytes: no collation can merge two keys
);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
-- Waits for the transactions that hold a key, and has everybody else wait behind
-- itself. Stop all holders first. Nothing is forgotten: a row says nothing.
DROP TABLE "Tenant-1"."app_lock";
-- +goose StatementEnd
