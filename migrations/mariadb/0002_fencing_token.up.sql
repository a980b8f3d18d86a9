-- exclusive: fencing_token for mariadb, version 1
-- The sequence that tokens are drawn from. NOCACHE: what a cache holds is lost
-- when the server restarts, and each node of a cluster would have a block of its
-- own, so that a later grant could get a smaller token than an earlier.
-- All that the role of the application needs:
-- GRANT SELECT, INSERT ON exclusive_token TO app
CREATE SEQUENCE exclusive_token MINVALUE 1 INCREMENT BY 1 NOCACHE NOCYCLE ENGINE = InnoDB;
