#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Programs of Debian's answer by `kopi run` what they answer with UDP sockets, end in the same way, and send by
# rings, which nft, ss and tcpdump see as ever: preload_programs.sh [NAME...]

# shellcheck disable=SC2086 # Names without spaces.
# shellcheck source=selftests/lib.sh
. "$(dirname "$0")/lib.sh"

work=/tmp/programs
mkdir -p $work/tftp
cd $work || exit
chmod 777 $work $work/tftp

# A zone, with an answer that is longer than what rings take, and one that is longer than a packet.
zone() {
	echo '$ORIGIN example.test.'
	echo '@ 60 IN SOA ns admin 1 3600 600 86400 60'
	echo '@ 60 IN NS ns'
	echo 'ns 60 IN A 192.0.2.1'
	for number in {1..30}; do echo "host$number 60 IN A 198.51.100.$number"; done
	for number in {1..30}; do echo "host$number 60 IN AAAA 2001:db8:1::$number"; done
	for number in {1..12}; do printf 'long 60 IN TXT "%s%0180d"\n' $number 0; done
	for number in {1..24}; do printf 'longer 60 IN TXT "%s%0180d"\n' $number 0; done
}
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

run_nsd() {
	cat >nsd.conf <<-END
		server:
		  ip-address: 192.0.2.1
		  server-count: 2
		  username: ""
		  zonesdir: "$work"
		  pidfile: ""
		  xfrdfile: ""
		  zonelistfile: "$work/nsd.list"
		  logfile: "$work/nsd.log"
		remote-control:
		  control-enable: no
		zone:
		  name: example.test
		  zonefile: example.zone
	END
	exec "$@" nsd -d -c $work/nsd.conf
}

run_unbound() {
	{
		printf 'server:\n interface: 192.0.2.1\n access-control: 0.0.0.0/0 allow\n chroot: ""\n username: ""\n'
		printf ' directory: "%s"\n pidfile: ""\n use-syslog: no\n do-daemonize: no\n num-threads: 2\n' $work
		printf ' max-udp-size: 4096\n local-zone: "example.test." static\n'
		zone | sed -n "s/^\([a-z]*[0-9]*\) 60 IN \(A\|AAAA\|TXT\) \(.*\)/ local-data: '\1.example.test. 60 IN \2 \3'/p"
	} >unbound.conf
	exec "$@" unbound -d -c $work/unbound.conf
}

run_knot() {
	mkdir -p knot
	cat >knot.conf <<-END
		server:
		    listen: 192.0.2.1@53
		    rundir: $work/knot
		    udp-workers: 2
		    udp-max-payload: 4096
		    user: root:root
		database:
		    storage: $work/knot
		zone:
		  - domain: example.test
		    file: $work/example.zone
		    zonefile-sync: -1
	END
	exec "$@" knotd -c $work/knot.conf
}

run_named() {
	cat >named.conf <<-END
		options { directory "$work"; listen-on { 192.0.2.1; }; listen-on-v6 { none; }; pid-file none;
			session-keyfile none; recursion no; max-udp-size 4096; minimal-responses yes;
			dnssec-validation no; };
		controls { };
		zone "example.test" { type primary; file "$work/example.zone"; };
	END
	exec "$@" named -g -n 2 -c $work/named.conf
}

run_dnsmasq() {
	local records=()
	for number in {1..30}; do
		records+=("--host-record=host$number.example.test,198.51.100.$number,2001:db8:1::$number")
	done
	for number in {1..12}; do records+=("--txt-record=long.example.test,$(printf '%s%0180d' "$number" 0)"); done
	exec "$@" dnsmasq -k -C /dev/null --no-resolv --no-hosts --user=root --pid-file= --listen-address=192.0.2.1 \
		--bind-interfaces --host-record=ns.example.test,192.0.2.1 --local=/example.test/ --edns-packet-max=4096 \
		--enable-tftp --tftp-root=$work/tftp --log-facility=- "${records[@]}"
}

# A file, by TFTP.
ask_tftp() {
	for _ in 1 2; do
		rm -f $work/got
		in_peer tftp -m binary 192.0.2.1 -c get file $work/got 2>&1
		cksum <$work/got
	done
}
up_tftp() { in_peer tftp -m binary 192.0.2.1 -c get file $work/up >/dev/null 2>&1 && [ -s $work/up ]; }
run_tftpd() { exec "$@" in.tftpd -L -a 192.0.2.1:69 -s $work/tftp -u root; }

run_snmpd() {
	printf 'rocommunity public\nagentaddress udp:192.0.2.1:161\nsysName test\n' >snmpd.conf
	exec "$@" snmpd -f -Lo -C -c $work/snmpd.conf -I -smux,mteTrigger,mteTriggerConf
}
ask_snmpd() {
	for _ in 1 2 3; do in_peer snmpbulkwalk -On -t 20 -v 2c -c public 192.0.2.1 1.3.6.1.2.1.1.9.1.3 2>&1; done
}
up_snmpd() { in_peer snmpget -t 1 -r 0 -v 2c -c public 192.0.2.1 1.3.6.1.2.1.1.5.0; }

run_memcached() { exec "$@" memcached -u root -U 11211 -p 11211 -l 192.0.2.1 -t 2; }
ask_memcached() {
	in_peer python3 - 2>&1 <<-'END'
		import socket, struct
		s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
		s.settimeout(20)
		s.connect(("192.0.2.1", 11211))
		def ask(number, text):
		    s.send(struct.pack(">HHHH", number, 0, 1, 0) + text)
		    parts, total = {}, 1
		    while len(parts) < total:
		        data = s.recv(65536)
		        got, at, total, _ = struct.unpack(">HHHH", data[:8])
		        assert got == number
		        parts[at] = data[8:]
		    return b"".join(parts[at] for at in sorted(parts))
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

# Datagrams that rings have sent.
sent() { in_host kopictl --json stats | jq .stats.tx_packets; }

# Runs a program, has it asked, and ends it: run NAME HOW WORDS...
serve() {
	local name=$1 how=$2 status server
	shift 2
	: >iperf3.json
	# Not in_host, whose process would be another one.
	nsenter --net=/run/netns/host bash -c "$(declare -f "run_$name" zone wait_for in_peer); work=$work; run_$name $*" >"$name.$how.log" 2>&1 &
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
	rings=$(($(sent) - before))
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
		check "nft counts the answers: $answers packets" [ "$answers" -ge $rings ]
		check "ss shows the process" grep -q 'users:.*"nsd' nsd.run.ss
		wait_for eval '[ "$(wc -l <tcpdump.out)" -ge '$rings' ]'
		check "tcpdump shows them" [ "$(wc -l <tcpdump.out)" -ge $rings ]
		kill "$tap"
	fi
	check "$name: the same $(wc -l <"$name.plain.answers") lines of answers and end, $rings datagrams by rings ($((SECONDS - start)) s)" \
		cmp -s "$name.plain.answers" "$name.run.answers"
	check "$name: there are answers" [ "$(wc -l <"$name.plain.answers")" -gt 1 ]
	# Of a socket that several processes share, one process sends by a ring.
	check "$name: rings sent them" [ $rings -gt 0 ]
	diff "$name.plain.answers" "$name.run.answers" | head -10 | cut -c -150 | sed 's/^/# /'
	if [ $failures -gt 0 ]; then
		tail -n 5 "$name.plain.log" "$name.run.log" | cut -c -200 | sed 's/^/#  /'
		tail -n 3 "$name.plain.answers" | cut -c -200 | sed 's/^/#  /'
	fi
done
in_host nft delete table inet watch
finish
