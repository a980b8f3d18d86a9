-- exclusive: fencing_token for postgres, version 1, prefix "app_", schema "Tenant-1"
-- +goose Up
-- +goose StatementBegin
-- The sequence that tokens are drawn from. CACHE 1: with a larger cache each
-- connection hands out numbers of its own block, and a later grant could get a
-- smaller token than an earlier.
-- All that the role of the application needs:
-- GRANT USAGE ON SEQUENCE "Tenant-1"."app_token" TO app
CREATE SEQUENCE "Tenant-1"."app_token" AS bigint MINVALUE 1 NO CYCLE CACHE 1;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
-- Tokens would begin again: destinations that remember marks refuse them then.
DROP SEQUENCE "Tenant-1"."app_token";
-- +goose StatementEnd
