-- exclusive: redisbackend_counter for sqlite, version 1
-- Tokens would begin again: destinations that remember marks refuse them then.
DROP TABLE exclusive_counter;
