ALTER TABLE orders ADD COLUMN claim_token bigint;
ALTER TABLE orders ADD COLUMN claim_grant varchar(64);
ALTER TABLE orders ADD COLUMN claim_expires bigint;
