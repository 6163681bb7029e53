# SPDX-License-Identifier: GPL-2.0
# Sourced by what asks the servers of servers.sh from the machine `peer`: up_KIND says whether one can be asked,
# ask_KIND prints its answers. $work is the current directory.
# shellcheck shell=bash
# shellcheck disable=SC2086,SC2154 # Names without spaces; the caller's variables.

# What the peer gets of a DNS server.
ask_dns() {
	in_peer dig +nocmd +nostats +noquestion +noadditional +noauthority +norecurse +ignore +bufsize=4096 \
		+time=20 +tries=2 @192.0.2.1 -f $work/questions 2>&1 | sed 's/, id: [0-9]*//' |
		grep -vE '^$|^; (EDNS|COOKIE)|^;; OPT|udp: ' | sort
}
up_dns() { in_peer dig +short +time=1 +tries=1 @192.0.2.1 ns.example.test A | grep -qx 192.0.2.1; }

# A file, by TFTP.
ask_tftp() {
	for _ in 1 2; do
		rm -f $work/got
		in_peer tftp -m binary 192.0.2.1 -c get file $work/got 2>&1
		cksum <$work/got
	done
}
up_tftp() { in_peer tftp -m binary 192.0.2.1 -c get file $work/up >/dev/null 2>&1 && [ -s $work/up ]; }

ask_snmpd() {
	for _ in 1 2 3; do in_peer snmpbulkwalk -On -t 20 -v 2c -c public 192.0.2.1 1.3.6.1.2.1.1.9.1.3 2>&1; done
}
up_snmpd() { in_peer snmpget -t 1 -r 0 -v 2c -c public 192.0.2.1 1.3.6.1.2.1.1.5.0; }

ask_memcached() {
	in_peer python3 - 2>&1 <<-'END'
		import socket, struct
		s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
		s.settimeout(20)
		s.connect(("192.0.2.1", 11211))
		# Each value, and the end, is an answer of its own.
		def ask(number, text):
		    s.send(struct.pack(">HHHH", number, 0, 1, 0) + text)
		    parts = []
		    while not parts or text[:3] == b"get" and parts[-1][-5:] != b"END\r\n":
		        data = s.recv(65536)
		        got, at, total, _ = struct.unpack(">HHHH", data[:8])
		        assert (got, at, total) == (number, 0, 1), (number, got, at, total)
		        parts.append(data[8:])
		    return b"".join(parts)
		for n in range(20):
		    print(ask(n, b"set key%d 0 0 %d\r\n%s\r\n" % (n, 50 * n, b"v" * (50 * n))))
		print(ask(100, b"get " + b" ".join(b"key%d" % n for n in range(20)) + b"\r\n"))
		for n in range(20):
		    print(ask(200 + n, b"get key%d\r\n" % n))
	END
}
up_memcached() {
	in_peer python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); s.connect(("192.0.2.1", 11211))
s.send(b"\0\1\0\0\0\1\0\0version\r\n"); s.recv(100)'
}

run_socat() { exec "$@" socat UDP-RECVFROM:7001,bind=192.0.2.1,fork EXEC:'tr a-z A-Z'; }
ask_socat() { for number in 1 2 3 4 5; do ask 7001 "some line $number"; done; }
# With patience: its children mix up datagrams that come while one of them begins.
up_socat() { ask 7001 up 20 | grep -q UP; }

# The client is what kopi run starts.
run_iperf3() {
	nsenter --net=/run/netns/peer iperf3 -s -1 -D --pidfile "$work/iperf3.pid"
	wait_for eval '[ -n "$(in_peer ss -Htln sport = 5201)" ]'
	exec "$@" iperf3 -J -u -c 192.0.2.2 -k 300 -l 1000 -b 3M >iperf3.json
}
ask_iperf3() { wait_for grep -q '"cpu_utilization_percent"' iperf3.json && jq '.end.sum_sent.packets >= 300' iperf3.json; }
up_iperf3() { true; }
