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
	echo "$status $tests - $what"
}

# Ends the file.
finish() {
	echo "1..$tests"
	[ $failures = 0 ]
	exit
}

in_host() { ip netns exec host "$@"; }
in_peer() { ip netns exec peer "$@"; }
# Runs as an unprivileged user: as bob COMMAND...
as() {
	local user=$1
	shift
	setpriv --reuid "$user" --regid "$user" --clear-groups -- "$@"
}

# Waits until a command succeeds, 10 seconds at most.
wait_for() {
	for _ in $(seq 100); do
		"$@" >/dev/null 2>&1 && return
		sleep 0.1
	done
	echo "# timed out: $*"
	return 1
}
