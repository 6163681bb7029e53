#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Programs of Debian's answer by `kopi run` what they answer with UDP sockets, end in the same way, and send by
# channels, which nft, ss and tcpdump see as ever: preload_programs.sh [NAME...]

# shellcheck disable=SC2086 # Names without spaces.
# shellcheck source=selftests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=selftests/servers.sh
. "$here/servers.sh"

work=/tmp/programs workers=2
mkdir -p $work/tftp
cd $work || exit
chmod 777 $work $work/tftp

zone >"$work/example.zone"
for number in {1..30}; do echo "host$number.example.test A" && echo "host$number.example.test AAAA"; done >$work/questions
printf '%s TXT\n' long.example.test longer.example.test >>$work/questions
echo 'nothing.example.test A' >>$work/questions
head -c 100000 /dev/urandom >$work/tftp/file

# What the peer gets of a DNS server.
ask_dns() {
	in_peer dig +nocmd +nostats +noquestion +noadditional +noauthority +norecurse +ignore +bufsize=4096 \
		+time=20 +tries=2 @192.0.2.1 -f $work/questions 2>&1 | sed 's/, id: [0-9]*//' |
		grep -vE '^$|^; (EDNS|COOKIE)|^;; OPT|udp: ' | sort
}
up_dns() { in_peer dig +short +time=1 +tries=1 @192.0.2.1 ns.example.test A | grep -q 192.0.2.1; }

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

# Datagrams that channels have sent: from their rings, or by the routes that they remember.
sent() { in_host kopictl --json stats | jq .stats.tx_packets; }

# Runs a program, has it asked, and ends it: run NAME HOW WORDS...
serve() {
	local name=$1 how=$2 status server
	shift 2
	: >iperf3.json
	# Not in_host, whose process would be another one.
	nsenter --net=/run/netns/host bash -c "$(declare -f "run_$name" zone wait_for in_peer); work=$work workers=$workers; run_$name $*" >"$name.$how.log" 2>&1 &
	server=$!
	TENTHS=${patience:-600} wait_for "up_${kind[$name]}"
	in_host ss -Hunap >"$name.$how.ss"
	"ask_${kind[$name]}" >"$name.$how.answers" 2>&1
	[ "$name" = iperf3 ] || kill "$server"
	wait "$server"
	status=$?
	echo "ended with $status" >>"$name.$how.answers"
}

declare -A kind=([nsd]=dns [unbound]=dns [knot]=dns [named]=dns [dnsmasq]=dns [tftpd]=tftp [snmpd]=snmpd
	[memcached]=memcached [socat]=socat [iperf3]=iperf3)

programs=("$@")
[ $# != 0 ] || programs=(nsd unbound knot named dnsmasq tftpd snmpd memcached socat iperf3)
in_host nft -f - <<'END'
table inet watch {
	counter answers { }
	chain out { type filter hook output priority 0; udp sport 53 counter name answers; }
}
END
# Runs a program in both ways: says whether the answers are the same.
both() {
	serve "$1" plain
	before=$(sent)
	if [ "$1" = nsd ]; then
		in_host nft reset counters >/dev/null
		nsenter --net=/run/netns/host tcpdump -lni eth0 udp src port 53 >tcpdump.out 2>tcpdump.err &
		tap=$!
		wait_for grep -q listening tcpdump.err
	fi
	serve "$1" run kopi run --explain --min-datagrams 1
	channels=$(($(sent) - before))
	cmp -s "$1.plain.answers" "$1.run.answers"
}
for name in "${programs[@]}"; do
	start=$SECONDS
	# On a busy machine a server may give a question up, with plain sockets, too.
	if ! both "$name"; then
		[ "$name" != nsd ] || kill "$tap"
		both "$name"
	fi
	if [ "$name" = nsd ]; then
		answers=$(in_host nft list counter inet watch answers | sed -n 's/.*packets \([0-9]*\).*/\1/p')
		check "nft counts the answers: $answers packets" [ "$answers" -ge $channels ]
		check "ss shows the process" grep -q 'users:.*"nsd' nsd.run.ss
		wait_for eval '[ "$(wc -l <tcpdump.out)" -ge '$channels' ]'
		check "tcpdump shows them" [ "$(wc -l <tcpdump.out)" -ge $channels ]
		kill "$tap"
	fi
	check "$name: the same $(wc -l <"$name.plain.answers") lines of answers and end, $channels datagrams by channels ($((SECONDS - start)) s)" \
		cmp -s "$name.plain.answers" "$name.run.answers"
	check "$name: there are answers" [ "$(wc -l <"$name.plain.answers")" -gt 1 ]
	check "$name: no client has failed" eval "! grep -q '^Traceback' '$name.plain.answers'"
	check "$name: channels sent them" [ $channels -gt 0 ]
	diff "$name.plain.answers" "$name.run.answers" | head -10 | cut -c -150 | sed 's/^/# /'
	if [ $failures -gt 0 ]; then
		tail -n 5 "$name.plain.log" "$name.run.log" | cut -c -200 | sed 's/^/#  /'
		tail -n 3 "$name.plain.answers" | cut -c -200 | sed 's/^/#  /'
	fi
done
in_host nft delete table inet watch
finish
