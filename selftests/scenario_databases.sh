#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Enforced rules keep 5432 for PostgreSQL run by bob and 3306 for MariaDB run by charlie: these serve
# clients on another machine, impostors are refused, and a new rule ends the sessions that it denies.

. "$(dirname "$0")/lib.sh"

title "Scenario 6, databases: 5432 is PostgreSQL's of bob, 3306 MariaDB's of charlie, by any socket."
postgres=/usr/lib/postgresql/17/bin/postgres mariadbd=/usr/sbin/mariadbd
home=/tmp/databases
# The demonstration has less time.
short=${NARRATE:-}
PATH+=:${postgres%/*}
# What makes a server's TCP sockets KOPI flows.
by_kopi=(kopi run --tcp)

cleanup() {
	for user in alice bob charlie; do pkill -KILL -u "$user" 'postgres|mariadbd|socat'; done
	# shellcheck disable=SC2046 # Many.
	kill $(jobs -p) 2>/dev/null
	wait
	in_host kopictl rule enforce off
	in_host kopictl rule flush
	rm -rf "$home" /etc/kopi/kopi.conf
}
trap cleanup EXIT
mkdir -p "$home" /etc/kopi
chmod 755 "$home"

# The clusters that Debian's packages made, each for its new owner.
make_clusters() {
	cp -a /var/lib/postgresql/17/main "$home/bob"
	cat >"$home/bob/postgresql.conf" <<-'END'
		listen_addresses = '192.0.2.1, 2001:db8::1'
		unix_socket_directories = ''
		shared_buffers = 16MB
		fsync = off
	END
	printf 'host all all %s trust\n' 192.0.2.0/24 2001:db8::/64 >"$home/bob/pg_hba.conf"
	touch "$home/bob/pg_ident.conf"
	chown -R bob: "$home/bob"
	# Its log is long, and empty.
	cp -a --sparse=always /var/lib/mysql "$home/charlie"
	cat >"$home/charlie/grants.sql" <<-'END'
		CREATE DATABASE IF NOT EXISTS shop;
		CREATE USER IF NOT EXISTS shop@'192.0.2.2';
		GRANT ALL ON shop.* TO shop@'192.0.2.2';
	END
	chown -R charlie: "$home/charlie"
	# As much of one as PostgreSQL needs before it listens.
	mkdir "$home/skeleton" "$home/empty"
	(cd "$home/bob" && find . -type d -print0 | (cd "$home/skeleton" && xargs -0 mkdir -p) &&
		cp --parents PG_VERSION global/pg_control ./*.conf "$home/skeleton")
	chmod 700 "$home/skeleton"
}
make_clusters

cat >/etc/kopi/kopi.conf <<END
enforce on
rule user bob exe $postgres local-port 5432 allow
rule user charlie exe $mariadbd local-port 3306 allow
rule local-port 5432 deny comment 'only postgres of bob'
rule local-port 3306 deny comment 'only mariadbd of charlie'
END
apply() { in_host kopictl config apply >/dev/null; }
typed "cat /etc/kopi/kopi.conf"
shown </etc/kopi/kopi.conf
typed "kopictl config apply"
check "the rules are in force" apply

# Starts a program as a user, with a log: start USER LOG COMMAND...
start() {
	nsenter --net=/run/netns/host setpriv --reuid "$1" --regid "$1" --clear-groups -- "${@:3}" >"$2" 2>&1 &
	started=$!
}
ended() { ! kill -0 "$started" 2>/dev/null; }
is_open() { in_peer timeout 5 bash -c 'exec 3<>"/dev/tcp/192.0.2.1/$1"' is_open "$1" 2>/dev/null; }
denial() { grep -i -m 1 'permission denied' "$1" | sed 's/^.* LOG: *//; s/^.*\[ERROR\] //; s/^.* E bind/bind/'; }

# It doesn't get the port, and its own log says why: refused WHAT USER PORT COMMAND...
refused() {
	start "$2" "$home/refused" "${@:4}"
	local opened=
	wait_for eval 'ended || { is_open $3 && opened=1; }'
	check "$1 doesn't get port $3" [ -z "$opened" ]
	kill "$started" 2>/dev/null
	wait "$started" 2>/dev/null
	check "its log says that it isn't permitted" grep -qi 'permission denied' "$home/refused"
	tell "$1: $(denial "$home/refused")"
}
other_postgres() { chown -R "$1": "$home/skeleton" && refused "$2" "$1" 5432 "${@:3}" -D "$home/skeleton"; }
impostors() {
	cp "$postgres" "$home/copy"
	chown bob: "$home/empty"
	other_postgres charlie "charlie's postgres" "$postgres"
	other_postgres bob "a copy of postgres, run by bob" "$home/copy"
	refused "root's netcat" root 5432 busybox nc -l -p 5432
	if [ -z "$short" ]; then
		other_postgres alice "alice's postgres" "$postgres"
		other_postgres charlie "charlie's postgres by KOPI" "${by_kopi[@]}" "$postgres"
		refused "bob's socat" bob 5432 socat TCP-LISTEN:5432,bind=192.0.2.1 STDIO
	fi
	refused "bob's mariadbd" bob 3306 "$mariadbd" --no-defaults --datadir="$home/empty" --skip-innodb \
		--default-storage-engine=Aria --skip-grant-tables --socket="$home/empty/socket" --bind-address=192.0.2.1
}
tell "Whoever else wants the ports is refused:"
impostors

# Starts both, by a command that starts programs, or by themselves.
start_servers() {
	start bob "$home/bob.log" "$@" "$postgres" -D "$home/bob"
	start charlie "$home/charlie.log" "$@" "$mariadbd" --no-defaults --datadir="$home/charlie" \
		--socket="$home/charlie/socket" --pid-file="$home/charlie/pid" --init-file="$home/charlie/grants.sql" \
		--skip-name-resolve --skip-ssl --bind-address=192.0.2.1
}
end_servers() {
	kill -INT "$(head -n 1 "$home/bob/postmaster.pid")"
	kill "$(cat "$home/charlie/pid")"
	wait_for eval '! pgrep -u bob postgres && ! pgrep -u charlie mariadbd'
}
# Clients on the other machine.
psql() { in_peer "${postgres%/*}/psql" -XAtq "host=${server:-192.0.2.1} user=postgres dbname=postgres" "$@"; }
mariadb() { in_peer mariadb --no-defaults --skip-ssl -h 192.0.2.1 -u shop -N shop "$@"; }
bench() { in_peer pgbench -h 192.0.2.1 -U postgres "$@" postgres >"$home/pgbench" 2>&1 || { sed 's/^/# /' "$home/pgbench" && false; }; }
postgres_answers() { [ "$(psql -c 'SELECT 6 * 7')" = 42 ]; }
mariadb_answers() { [ "$(mariadb -e 'SELECT 6 * 7')" = 42 ]; }

# Transactions by several clients at once, whose sums agree.
agree() {
	[ "$(psql -c 'SELECT count(*), (SELECT count(*) FROM pgbench_accounts),
		sum(delta) = (SELECT sum(abalance) FROM pgbench_accounts),
		sum(delta) = (SELECT sum(tbalance) FROM pgbench_tellers) FROM pgbench_history')" = "$1|100000|t|t" ]
}
orders() { seq 3000 | awk '{ printf "%d\titem number %d\t%d\n", $1, $1, $1 * 7 % 1000 }'; }
fill() {
	{
		echo 'CREATE TABLE orders (id INT PRIMARY KEY, what VARCHAR(40), price INT) ENGINE=InnoDB; START TRANSACTION;'
		orders | awk -F '\t' '{ printf "%s(%d,\"%s\",%d)", NR % 500 == 1 ? "INSERT INTO orders VALUES" : ",", $1, $2, $3 }
			NR % 500 == 0 { print ";" }'
		echo 'COMMIT; START TRANSACTION; DELETE FROM orders; ROLLBACK;'
	} | mariadb
}
sell() { yes 'UPDATE orders SET price = price + 1 WHERE id = 1000;' | head -n 20 | mariadb; }
sold() { [ "$(mariadb -e 'SELECT count(*), sum(price) FROM orders')" = "3000	$((1498500 + $1))" ]; }
work() {
	check "pgbench fills its tables" bench -i -s 1 -q
	check "pgbench does transactions" bench -n -c 4 -t 10
	check "all of them, and the sums agree" agree 40
	check "a client of MariaDB fills a table" fill
	check "and reads what it wrote" cmp <(orders) <(mariadb -e 'SELECT * FROM orders ORDER BY id')
	sell & local other=$!
	sell
	wait $other
	check "the changes of two add up" sold 40
	tell "pgbench: $(grep 'actually processed' "$home/pgbench"); MariaDB: $(mariadb -e 'SELECT count(*) FROM orders') rows"
}
tell "The two servers work, and know nothing of it:"
start_servers
check "bob's PostgreSQL answers" wait_for postgres_answers
check "charlie's MariaDB answers" wait_for mariadb_answers
work

# A session of psql: session NAME SERVER; say NAME STATEMENT; whether it shows something: shows NAME PATTERN.
declare -A sessions
session() {
	rm -f "$home/$1.in"
	mkfifo "$home/$1.in"
	server=$2 psql <"$home/$1.in" >"$home/$1.out" 2>&1 &
	exec {to}>"$home/$1.in"
	sessions[$1]=$to
	say "$1" "SELECT 'here';"
	wait_for shows "$1" here
}
say() { echo "$2" >&"${sessions[$1]}"; }
shows() { grep -q "$2" "$home/$1.out"; }
# Denies the peer's IPv4 address a port, before all other rules, and takes that away.
deny() {
	local first
	first=$(in_host kopictl rule list --json | jq '.rules[0].handle')
	denied=$(in_host kopictl rule add before "$first" local-port "$1" remote 192.0.2.2 deny)
	typed "kopictl rule add before $first local-port $1 remote 192.0.2.2 deny"
}
allow() {
	in_host kopictl rule del "$denied"
	typed "kopictl rule del $denied"
}

# The packets of an ordinary socket are stopped: either end learns it when it waits or sends.
ordinary_sessions() {
	check "sessions are opened" eval 'session ipv4 192.0.2.1 && session ipv6 2001:db8::1 &&
		session careful "192.0.2.1 keepalives_idle=1 keepalives_interval=1 keepalives_count=2"'
	say careful 'SELECT pg_sleep(2);'
	deny 5432
	say ipv4 "SELECT 'an answer';"
	say ipv6 "SELECT 'goes on';"
	check "that of another address goes on" wait_for shows ipv6 'goes on'
	check "a denied one has no answer" eval '! shows ipv4 answer'
	check "a new one isn't opened" eval '! server="192.0.2.1 connect_timeout=2" psql -c "SELECT 1" 2>/dev/null'
	check "the server learns it when it sends" wait_for grep -q 'could not send data to client: Permission denied' "$home/bob.log"
	check "the client when nothing comes for long" wait_for shows careful 'timed out'
	tell "the server: $(denial "$home/bob.log"); the client: $(grep -o 'could not.*' "$home/careful.out")"
	allow
	check "without the rule a new one is opened" postgres_answers
	check "and TCP sends again what waited" wait_for shows ipv4 'an answer'
	deny 5432
	in_host ss -HKt dst 192.0.2.2 sport = 5432 >/dev/null
	typed "ss -K -t dst 192.0.2.2 sport = 5432"
	say ipv4 "SELECT 'ended';"
	check "ss -K ends one at once" wait_for shows ipv4 'closed the connection'
	tell "the client: $(head -n 1 <(grep closed "$home/ipv4.out"))"
	allow
}
# As an upgrade of its package does.
upgrade() {
	cp "$postgres" "$postgres.new"
	mv "$postgres.new" "$postgres"
	other_postgres bob "a postgres that is newer than its rule" "$postgres"
	check "the rules are put in force again" in_host kopictl config apply --rules
}
if [ -z "$short" ]; then
	tell "A rule stops sessions, while they last:"
	ordinary_sessions
	end_servers
	upgrade
else
	end_servers
fi

# Servers as KOPI flows.
tell "With the servers' sockets as KOPI flows, their sessions can be seen, and end at once:"
in_host kopictl watch >"$home/watch" 2>&1 &
wait_for grep -q EVENT "$home/watch"
start_servers "${by_kopi[@]}"
flow() { in_host kopictl ps --json | jq -e ".[] | select(.local_port == $1 and .exe == \"$2\" and .tcp_state == \"$3\")" >/dev/null; }
watched() { grep -q " $1  .* $2  .* $3 " "$home/watch"; }
flows_are_shown() {
	check "PostgreSQL answers" wait_for postgres_answers
	check "MariaDB answers" wait_for mariadb_answers
	check "PostgreSQL's listener is a flow" flow 5432 "$postgres" listen
	check "MariaDB's, too" flow 3306 "$mariadbd" listen
	check "sessions are opened" eval 'session ipv4 192.0.2.1 && session ipv6 2001:db8::1'
	say ipv4 'SELECT pg_sleep(600);'
	mariadb -e 'SELECT SLEEP(600)' >"$home/sleeper" 2>&1 &
	sleeper=$!
	check "and shown" wait_for eval 'flow 5432 $postgres established && flow 3306 $mariadbd established'
	typed "kopictl ps"
	in_host kopictl ps | shown
	# Not a function, of which $! would be the shell's.
	nsenter --net=/run/netns/host kopictl capture --summary >"$home/summary" 2>&1 &
	local capture=$!
	wait_for grep -q capturing "$home/summary"
	check "they work" eval 'bench -n -c 2 -t 5 && agree 50 && sold 40'
	kill $capture
	wait $capture
	typed "kopictl capture --summary"
	shown <"$home/summary"
	check "a capture names the servers" eval 'grep -q " postgres  *bob " $home/summary && grep -q " mariadbd  *charlie " $home/summary'
}
flows_end() {
	deny 5432
	check "a session ends at once" wait_for shows ipv4 'closed the connection'
	check "kopictl watch tells" wait_for watched flow-denied postgres bob
	deny 3306
	wait $sleeper
	check "so does one of MariaDB" grep -q 'Lost connection' "$home/sleeper"
	check "and is told of" wait_for watched flow-denied mariadbd charlie
	say ipv6 "SELECT 'goes on';"
	check "that of another address goes on" wait_for shows ipv6 'goes on'
	typed "kopictl watch"
	grep -h 'EVENT\|flow-\(connected\|denied\)' "$home/watch" | tail -n 8 | shown
	allow
	check "without the rule MariaDB answers" mariadb_answers
}
flows_are_shown
flows_end
end_servers
finish
