-- exclusive: redisbackend_counter for postgres, version 1, prefix "app_", schema "Tenant-1"
-- +goose Up
-- +goose StatementBegin
-- Counters: for each key the last token that was drawn for a lease elsewhere
-- (package redisbackend with NewTokens). Rows are never deleted: tokens would
-- begin again.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON "Tenant-1"."app_counter" TO app
CREATE TABLE "Tenant-1"."app_counter" (
    counter_key bytea  NOT NULL PRIMARY KEY,
    token       bigint NOT NULL
) WITH (fillfactor = 70);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
-- Tokens would begin again: destinations that remember marks refuse them then.
DROP TABLE "Tenant-1"."app_counter";
-- +goose StatementEnd
