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

# A netcat that listens, and has lines for whoever asks.
nsenter --net=/run/netns/host kopi-nc -vl 192.0.2.1 7777 < <(while echo line; do sleep 1; done) >/tmp/nc.out 2>/tmp/nc.err &
netcat=$!
check "kopi-nc listens" wait_for grep -q listening /tmp/nc.err
echo nobody | from_port_0 7777
check "it prints what comes from port 0" wait_for grep -qx nobody /tmp/nc.out
check "and answers the one who can be answered" [ "$(ask 7777 hello)" = line ]
kill $netcat
check "with -w it ends without traffic, be standard input open or not" \
	in_host timeout 60 kopi-nc -lw 1 192.0.2.1 7777 < <(sleep 600)
for server in 'kopi-echo --bind 192.0.2.1:7777' "$here/../build/cargo/debug/examples/echo 192.0.2.1:7777" 'libkopi-echo 192.0.2.1 7777'; do
	# shellcheck disable=SC2086 # Words.
	nsenter --net=/run/netns/host $server >/tmp/server.out 2>&1 &
	running=$!
	wait_for grep -q listening /tmp/server.out
	echo nobody | from_port_0 7777
	check "$(basename "${server%% *}") answers after a question from port 0" echoes 7777 hello
	kill $running
	wait $running 2>/dev/null
done
finish
