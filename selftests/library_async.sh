#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The crate's sockets work for tasks of tokio's and as event sources of mio's: the crate's own
# tests, here with the module; a slow device loses and doubles nothing, whatever waits are dropped.

. "$(dirname "$0")/lib.sh"

deps=$here/../build/cargo/debug/deps
# The newest binary of a test of the crate.
binary() { find "$deps" -name "$1-*" -perm -u+x -type f -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2; }

# Runs each test of a binary as a check of its own: each BINARY [USER]
each() {
	local name run=("$(binary "$1")")
	[ -z "${2:-}" ] || { cp "${run[0]}" /tmp/ && run=(as "$2" "/tmp/$(basename "${run[0]}")"); }
	for name in $("${run[@]}" --list | sed -n 's/: test$//p'); do
		check "$1: $name, as ${2:-root}" quietly "${run[@]}" --exact "$name" --test-threads 1
	done
}
quietly() { "$@" >/tmp/async.out 2>&1 || { sed 's/^/# /' /tmp/async.out && false; }; }

export KOPI_REQUIRED=1
each tokio_socket
each mio_sources
check "cargo test tokio_socket, as bob" quietly as bob "/tmp/$(cp "$(binary tokio_socket)" /tmp/ && basename "$(binary tokio_socket)")"

# The device is slow, and the send buffer holds a few packets.
judge='import socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# SO_RCVBUFFORCE
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
s.bind(("192.0.2.2", 7779))
print("ready", flush=True)
while True:
	numbers, asker = [], None
	s.settimeout(None)
	while len(numbers) < 200 or not asker:
		try:
			data, peer = s.recvfrom(2048)
		except TimeoutError:
			break
		s.settimeout(20)
		if data == b"how many?":
			asker = peer
		else:
			numbers += struct.unpack(">I", data[:4])
	order = "in order" if numbers == sorted(set(numbers)) else f"{numbers}"
	s.sendto(f"{len(numbers)} {order}".encode(), asker)'
in_host tc qdisc add dev eth0 root tbf rate 2mbit burst 2000 latency 5s
nsenter --net=/run/netns/peer python3 -c "$judge" >/tmp/judge.out 2>&1 &
wait_for grep -q ready /tmp/judge.out
for runtime in one_thread several_threads; do
	check "a full send buffer, with waits that are dropped, loses nothing: $runtime" quietly \
		in_host env KOPI_SLOW_PEER=192.0.2.2:7779 "$(binary tokio_socket)" --exact "full_buffers_of_$runtime"
done
kill %1
in_host tc qdisc del dev eth0 root

nsenter --net=/run/netns/host "$deps/../examples/echo_tokio" 0.0.0.0:7777 >/tmp/echo.out 2>&1 &
echo=$!
check "the example starts" wait_for grep -q listening /tmp/echo.out
check "it answers the peer" echoes 7777 hello
echo nobody | from_port_0 7777
check "it answers after a question from port 0" echoes 7777 again
in_host nft -f - <<'EOF'
table ip refusing {
	chain output {
		type filter hook output priority 0
		udp sport 7777 counter drop
	}
}
EOF
check "a filter refuses an answer" eval '! echoes 7777 refused 1'
in_host nft delete table ip refusing
check "after which it answers the next ones" eval 'echoes 7777 one && echoes 7777 two'
check "it says what went wrong" grep -q 'not permitted' /tmp/echo.out
kill $echo

check "nothing holds the module" wait_for unused
finish
