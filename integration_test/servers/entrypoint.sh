# The entry point of images made from Debian roots. It answers to the same
# environment variables, folder of SQL files and arguments as the official images,
# as far as package servers uses them. It runs under sh -e.

as() {
	user=$1
	shift
	exec setpriv --reuid="$user" --regid="$user" --init-groups -- "$@"
}

program=$1
shift
data=/srv/data

case "$program" in
postgres)
	PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
	install -d -o postgres -g postgres "$data" /run/postgresql
	printf %s "$POSTGRES_PASSWORD" >/run/password
	(as postgres initdb --pgdata="$data" --username="$POSTGRES_USER" --pwfile=/dev/stdin \
		--auth=scram-sha-256 --encoding=UTF8 --no-sync </run/password)
	echo 'host all all all scram-sha-256' >>"$data/pg_hba.conf"
	as postgres postgres -D "$data" -c 'listen_addresses=*' "$@"
	;;
mysqld)
	install -d -o mysql -g mysql "$data" /run/mysqld
	(as mysql mysqld --no-defaults --initialize-insecure --datadir="$data/db")
	cat /docker-entrypoint-initdb.d/*.sql >/run/init.sql
	as mysql mysqld --no-defaults --datadir="$data/db" --secure-file-priv=NULL --init-file=/run/init.sql "$@"
	;;
mariadbd)
	install -d -o mysql -g mysql "$data" /run/mysqld
	(as mysql mariadb-install-db --no-defaults --datadir="$data/db" --skip-test-db)
	cat /docker-entrypoint-initdb.d/*.sql >/run/init.sql
	as mysql mariadbd --no-defaults --datadir="$data/db" --bind-address='*' --init-file=/run/init.sql "$@"
	;;
redis-server | valkey-server)
	exec "$program" --bind '*' "$@"
	;;
*)
	echo "do not know how to run $program" >&2
	exit 1
	;;
esac
