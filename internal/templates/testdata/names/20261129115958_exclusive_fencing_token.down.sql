-- exclusive: fencing_token for mariadb, version 1, prefix "order "
-- Tokens would begin again: destinations that remember marks refuse them then.
DROP SEQUENCE `order token`;
