# SPDX-License-Identifier: GPL-2.0
# Sourced by tests that run in the virtual machine: checks, and their lines of TAP.
# shellcheck shell=bash

number=0 failed=0

ok() { number=$((number + 1)) && echo "ok $number - $1"; }
not_ok() {
	number=$((number + 1)) failed=$((failed + 1))
	echo "not ok $number - $1"
	sed 's/^/# /' /tmp/said
}
# A line for a command, with what it said if it failed: check WHAT COMMAND...
check() {
	if "${@:2}" >/tmp/said 2>&1; then ok "$1"; else not_ok "$1"; fi
}
# Whether what a command says has a text: says TEXT COMMAND...
says() {
	"${@:2}" >/tmp/answer 2>&1
	cat /tmp/answer
	grep -qF -- "$1" /tmp/answer
}
refused() { ! "$@"; }
