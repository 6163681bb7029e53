#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Programs of Debian's answer by `kopi run` what they answer with UDP sockets, end in the same way, and send by
# channels, which nft, ss and tcpdump see as ever: preload_programs.sh [NAME...], or ALL=1 for all of them.

# shellcheck disable=SC2086 # Names without spaces.
# shellcheck source=selftests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=selftests/servers.sh
. "$here/servers.sh"
# shellcheck source=selftests/questions.sh
. "$here/questions.sh"
# shellcheck source=selftests/services.sh
. "$here/services.sh"

work=/tmp/programs workers=2
mkdir -p $work/tftp
cd $work || exit
chmod 777 $work $work/tftp

zone >"$work/example.zone"
for number in {1..30}; do echo "host$number.example.test A" && echo "host$number.example.test AAAA"; done >$work/questions
printf '%s TXT\n' long.example.test longer.example.test >>$work/questions
echo 'nothing.example.test A' >>$work/questions
head -c 100000 /dev/urandom >$work/tftp/file

# Datagrams that channels have sent: from their rings, or by the routes that they remember.
sent() { in_host kopictl --json stats | jq .stats.tx_packets; }

# How it is asked, if not in a way of its own; what ends by itself; Go's, which have ordinary sockets.
declare -A kind=([nsd]=dns [unbound]=dns [knot]=dns [named]=dns [dnsmasq]=dns [dnsdist]=dns [tftpd]=tftp)
declare -A ends=([iperf3]=1 [curl]=1 [mosh]=1) go=([wireguard]=1 [syncthing]=1)
# Whose datagrams channels can't have: with control messages for time stamps, or from no address.
declare -A special=([chrony]=1 [dhcp]=1)

# Does what a program has for a moment, if it has something: aspect MOMENT NAME
aspect() { [ "$(type -t "$1_$2")" != function ] || "$1_$2"; }

# Runs a program, has it asked, and ends it: serve NAME HOW WORDS...
serve() {
	local name=$1 status server
	# Where it says things.
	said=$name.$2.log
	local got=$name.$2.answers
	: >iperf3.json
	aspect before $name
	# Not in_host, whose process would be another one.
	nsenter --net=/run/netns/host bash -c "$(declare -f); here=$here work=$work workers=$workers; run_$name ${*:3}" >"$said" 2>&1 &
	server=$!
	TENTHS=${patience:-600} wait_for "up_${kind[$name]:-$name}"
	in_host ss -Hunap >"$name.$2.ss"
	"ask_${kind[$name]:-$name}" >"$got" 2>&1
	[ "${ends[$name]:-}" ] || kill "$server"
	wait "$server"
	status=$?
	echo "ended with $status" >>"$got"
	aspect after $name
}

programs=("$@")
# In `make test`: with recvmmsg() and sendmmsg(), threads, processes that share a socket, a tunnel, QUIC.
[ $# != 0 ] || programs=(nsd knot named memcached socat iperf3 openvpn http3)
[ -z "${ALL:-}" ] || programs+=(unbound dnsmasq tftpd snmpd dnsdist chrony coturn mosh gstreamer sockperf aioquic curl
	dhcp wireguard syncthing)
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
		rm -f tcpdump.err
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
	if [ "${go[$name]:-}" ]; then
		check "$name: has ordinary sockets, as kopi run says" grep -q '^kopi run: .*: ordinary sockets: ' "$name.run.log"
	elif [ -z "${special[$name]:-}" ]; then
		check "$name: channels sent them" [ $channels -gt 0 ]
	fi
	diff "$name.plain.answers" "$name.run.answers" | head -10 | cut -c -150 | sed 's/^/# /'
	if [ $failures -gt 0 ]; then
		tail -n 5 "$name.plain.log" "$name.run.log" | cut -c -200 | sed 's/^/#  /'
		tail -n 3 "$name.plain.answers" | cut -c -200 | sed 's/^/#  /'
	fi
done
in_host nft delete table inet watch
finish
