-- exclusive: uniquetask_floor for postgres, version 1, prefix "app_", schema "Tenant-1"
-- +goose Up
-- +goose StatementBegin
-- Where the tokens of new rows begin: past the token of every row of the task
-- that was removed, so that no later grant can have the number of an earlier.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT, UPDATE ON "Tenant-1"."app_task_floor" TO app
CREATE TABLE "Tenant-1"."app_task_floor" (
    task  bytea  NOT NULL PRIMARY KEY,
    token bigint NOT NULL
);
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
-- Forgets where tokens begin: those of runs that were removed can come again.
DROP TABLE "Tenant-1"."app_task_floor";
-- +goose StatementEnd
