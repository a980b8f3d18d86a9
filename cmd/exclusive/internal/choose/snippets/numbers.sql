CREATE TABLE counter (name varchar(64) PRIMARY KEY, next bigint NOT NULL);
INSERT INTO counter (name, next) VALUES ('invoice', 1);
