ALTER TABLE orders ADD COLUMN token bigint;
ALTER TABLE orders ADD COLUMN grant_id varchar(64);
ALTER TABLE orders ADD COLUMN expires_at bigint;
