#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Only postgres run by bob may use port 5432, and only mysqld run by charlie 3306:
# copies, other names and programs that come after them are stopped.

. "$(dirname "$0")/lib.sh"

title "Scenario 5, processes: 5432 is for postgres run by bob, 3306 for mysqld run by charlie."
bin=/tmp/programs
cleanup() {
	for user in alice bob charlie; do pkill -u "$user" -f "$bin"; done
	wait
	in_host kopictl rule flush
	rm -rf "$bin"
}
trap cleanup EXIT
mkdir -p $bin
# The programs are echo servers; a file's path is what a rule names.
for name in postgres mysqld; do cp "$(command -v kopi-echo)" $bin/$name; done

cat >/tmp/ports.rules <<'EOF'
user bob exe /tmp/programs/postgres local-port 5432 allow
user charlie exe /tmp/programs/mysqld local-port 3306 allow
local-port 5432 deny comment 'only postgres of bob'
local-port 3306 deny comment 'only mysqld of charlie'
EOF
in_host kopictl restore /tmp/ports.rules >/dev/null
typed "kopictl restore ports.rules"
shown </tmp/ports.rules

# serve USER PROGRAM PORT: starts it, and waits until it serves, or says why not.
serve() {
	rm -f /tmp/served
	# Not a function, of which $! would be the shell's.
	nsenter --net=/run/netns/host setpriv --reuid "$1" --regid "$1" --clear-groups -- \
		"$2" --bind "192.0.2.1:$3" >/tmp/served 2>&1 &
	server=$!
	wait_for grep -q 'listening\|denied' /tmp/served && grep -q listening /tmp/served
}
refused() { ! serve "$@" && grep -q 'Permission denied' /tmp/served && ! wait "$server"; }
end() { kill "$server"; wait "$server"; }

check "bob's postgres serves" serve bob $bin/postgres 5432
check "and answers" echoes 5432 hello
tell "bob's postgres serves 5432, and answers."
postgres=$server
check "charlie's mysqld serves" serve charlie $bin/mysqld 3306
check "and answers" echoes 3306 hello
end
check "charlie's postgres is refused" refused charlie $bin/postgres 5432
check "bob's mysqld is refused" refused bob $bin/mysqld 3306
mkdir $bin/copy && cp $bin/postgres $bin/copy/postgres
check "a copy of postgres is refused" refused bob $bin/copy/postgres 5432
printf '#!/bin/bash\nexec -a postgres %s "$@"\n' "$(command -v kopi-echo)" >$bin/named
chmod +x $bin/named
check "a program that calls itself postgres is refused" refused bob $bin/named 5432
tell "Refused: charlie's postgres, bob's mysqld, a copy of postgres, what calls itself postgres:"
typed "exec -a postgres kopi-echo --bind 192.0.2.1:5432"
shown </tmp/served
kill "$postgres"
wait "$postgres"

mv $bin/postgres $bin/postgres.old
check "postgres by another name serves: it is the same file" serve bob $bin/postgres.old 5432
end
mv $bin/copy/postgres $bin/postgres
check "another file by its name is refused" refused bob $bin/postgres 5432
check "and the list of rules says so" eval 'in_host kopictl rule list | grep -q "was replaced"'
in_host kopictl restore /tmp/ports.rules >/dev/null
check "until the rules are restored, as after an upgrade" serve bob $bin/postgres 5432
check "it answers" echoes 5432 upgraded
tell "After an upgrade of postgres its rule is stale, until the rules are restored."

in_host kopictl rule add before "$(in_host kopictl rule list --json | jq '.rules[0].handle')" user bob deny >/dev/null
typed "kopictl rule add before 1 user bob deny"
check "a rule stops it while it runs" eval '! echoes 5432 stopped 1'
check "it learns why" wait_for grep -q 'Permission denied' /tmp/served
tell "A rule stops it while it runs, and it learns why."
finish
