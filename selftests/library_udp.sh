#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The crate's UdpSocket answers as std's does, and its channels do as documented:
# the crate's own tests, here with the module.

. "$(dirname "$0")/lib.sh"

# The newest binary of a test of the crate.
binary() { find "$here/../build/cargo/debug/deps" -name "$1-*" -perm -u+x -type f -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2; }

export KOPI_REQUIRED=1
for name in udp_socket channel; do
	check "cargo test $name, as root" "$(binary $name)"
	cp "$(binary $name)" /tmp/
	check "cargo test $name, as bob" as bob "/tmp/$(basename "$(binary $name)")" --test-threads 1
done
finish
