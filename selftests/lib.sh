# SPDX-License-Identifier: GPL-2.0
# Sourced by the selftests in shell: TAP, namespaces, waiting.
# shellcheck shell=bash

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
tests=0 failures=0

# Runs the rest as a test: check DESCRIPTION COMMAND...
check() {
	local what=$1 status=ok
	shift
	tests=$((tests + 1))
	"$@" || { status='not ok' && failures=$((failures + 1)); }
	if [ -z "${NARRATE:-}" ]; then
		echo "$status $tests - $what"
	elif [ "$status" != ok ]; then
		echo "    FAILED: $what"
	fi
}

# Ends the file.
finish() {
	[ -n "${NARRATE:-}" ] || echo "1..$tests"
	[ $failures = 0 ]
	exit
}

# What a scenario tells: its title, what is done, with which command, and what was seen. With
# NARRATE=1, as in the demonstration, that is all it prints.
title() { if [ -n "${NARRATE:-}" ]; then printf '\n%s\n' "$*"; else echo "# $*"; fi; }
tell() { if [ -n "${NARRATE:-}" ]; then printf '  %s\n' "$*"; else echo "# $*"; fi; }
typed() { tell "  \$ $*"; }
shown() { sed 's/^[ \t]*/    /' | while read -r line; do tell "  $line"; done; }

# Not `ip netns exec`, under which /sys has no cgroups.
in_host() { nsenter --net=/run/netns/host "$@"; }
in_peer() { nsenter --net=/run/netns/peer "$@"; }
# Whether JSON on standard input is as a filter says.
has() { jq -e "$@" >/tmp/jq.out || { sed 's/^/# /' /tmp/jq.out; false; }; }
# Whether a command ends with a status; what it printed is in /tmp/out: ends_with STATUS COMMAND...
ends_with() {
	local status=$1
	shift
	"$@" >/tmp/out 2>&1
	[ $? = "$status" ] || { sed 's/^/# /' /tmp/out; false; }
}
# What a port of the host answers to a line from the peer: ask PORT LINE [SECONDS]. Half a minute is
# for a busy machine; where no answer is expected, one will do.
ask() {
	in_peer bash -c 'exec 3<>"/dev/udp/192.0.2.1/$1" && echo "$2" >&3 && exec timeout "${3:-30}" head -n 1 <&3' \
		ask "$@" 2>/dev/null
}
# Whether it answers with the same.
echoes() { [ "$(ask "$@")" = "$2" ]; }
# Sends what it reads to a port of the host, from source port 0, to which nobody can answer: from_port_0 PORT
from_port_0() {
	in_peer python3 -c 'import socket, struct, sys
port, data = int(sys.argv[1]), sys.stdin.buffer.read()
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as raw:
	raw.sendto(struct.pack(">4H", 0, port, 8 + len(data), 0) + data, ("192.0.2.1", 0))' "$1"
}
# Runs as an unprivileged user: as bob COMMAND...
as() {
	local user=$1
	shift
	setpriv --reuid "$user" --regid "$user" --clear-groups -- "$@"
}

# Runs as bob in a place where he is root of a user namespace, while a watchdog looks whether others are
# served; ends with the status of the command, or 3 if they weren't: hostile COMMAND...
hostile() { "$here/hostile.py" "$@"; }

# Runs in a cgroup below the root, and as a user: in_group GROUP USER COMMAND...
in_group() {
	local group=/sys/fs/cgroup/$1 user=$2
	shift 2
	bash -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' in_group "$group" \
		nsenter --net=/run/netns/host setpriv --reuid "$user" --regid "$user" --clear-groups -- "$@"
}

# Waits until a command succeeds, a minute at most, or as many TENTHS of one as that says.
wait_for() {
	for _ in $(seq "${TENTHS:-600}"); do
		"$@" >/dev/null 2>&1 && return
		sleep 0.1
	done
	echo "# timed out: $*"
	return 1
}

# Makes key.pem and cert.pem, of example.test, in the current directory, if they aren't there.
certificate() {
	[ -s cert.pem ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 \
		-subj /CN=example.test -addext subjectAltName=DNS:example.test \
		-addext basicConstraints=critical,CA:FALSE -keyout key.pem -out cert.pem 2>openssl.err
}

# The machine's memory that is free, in kilobytes, with what the kernel keeps in lists of each CPU: tens
# of megabytes.
available() {
	awk '/^MemAvailable:/ { sum += $2 } $1 == "count:" { sum += 4 * $2 } END { print sum }' \
		/proc/meminfo /proc/zoneinfo
}
# Nothing refers to the module.
unused() { [ "$(grep ^kopi /proc/modules | cut -d' ' -f3)" = 0 ]; }
