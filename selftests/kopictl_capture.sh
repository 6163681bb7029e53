#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# kopictl capture shows packets with the process that each is of: to people, to programs, in files
# that Wireshark reads, and in pipes; it chooses by all that it shows, and leaves nothing behind.

. "$(dirname "$0")/lib.sh"

kopictl() { in_host kopictl "$@"; }
says() { grep -qE -- "$1" "$2" || { sed 's/^/# /' "$2"; false; }; }
devices() { ip -n host -o link show type kopimon | wc -l; }

declare -A running
clean() {
	kill "${running[@]}" 2>/dev/null
	in_host nft delete table ip capture 2>/dev/null
	kopictl rule flush
	# Those that are left by what was killed.
	local name
	for name in $(ip -n host -j link show type kopimon | jq -r '.[].ifname'); do ip -n host link del "$name"; done
	find /sys/fs/cgroup/capture -depth -type d -exec rmdir {} + 2>/dev/null
}
trap clean EXIT
# Runs a program in the background, which is known by a name then.
starts() {
	local name=$1
	shift
	rm -f "/tmp/$name.out" "/tmp/$name.err"
	nsenter --net=/run/netns/host "$@" >"/tmp/$name.out" 2>"/tmp/$name.err" &
	running[$name]=$!
}
# Captures, and waits until it does: captures NAME ARGUMENTS...
captures() { captures_by "$1" kopictl capture "${@:2}"; }
captures_by() {
	starts "$@"
	wait_for grep -q '^capturing on ' "/tmp/$1.err"
}
# Ends captures; the last one's status is that of all.
stop() {
	local name status=0
	# A packet is shown after a tenth of a second at the latest.
	sleep 0.5
	for name in "$@"; do kill "${running[$name]}"; done
	for name in "$@"; do wait "${running[$name]}" || status=$?; unset "running[$name]"; done
	return $status
}
# How many packets a capture says that it had.
counted() { sed -n 's/^\([0-9]*\) packets captured, 0 dropped by the capture$/\1/p' "/tmp/$1.err"; }
# Asks bob's program, which answers.
asks() {
	in_peer python3 -c 'import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.bind(("192.0.2.2", 6000))
s.connect(("192.0.2.1", 7777))
s.send(b"hello\n")
assert s.recv(100) == b"hello\n"'
}
# A datagram of alice's: alice PORT
alice() { echo hi | in_host setpriv --reuid alice --regid alice --clear-groups -- kopi-nc -p 5000 -s 192.0.2.1 -w 0 192.0.2.2 "$1" 2>/dev/null; }
read_by() { tshark -n -r "$@" 2>/tmp/tshark.err || { sed 's/^/# /' /tmp/tshark.err; false; }; }
# What a file has: {length, captured, comment, custom} of each packet, {received, dropped} of the end.
blocks_of() {
	python3 - "$1" <<'EOF'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
order = ">" if data[8:12] == b"\x1a\x2b\x3c\x4d" else "<"
place = 0
while place < len(data):
    kind, size = struct.unpack_from(order + "2I", data, place)
    shown, at, end = {}, place + 20, place + size - 4
    if kind == 6:
        shown["captured"], shown["length"] = struct.unpack_from(order + "2I", data, at)
        at += 8 + -(-shown["captured"] // 4) * 4
    while kind in (5, 6) and at < end:
        code, length = struct.unpack_from(order + "2H", data, at)
        value = data[at + 4:at + 4 + length]
        if (kind, code) == (6, 1):
            shown["comment"] = value.decode()
        elif (kind, code) == (6, 2988) and struct.unpack_from(order + "I", value)[0] == 32473:
            shown["custom"] = json.loads(value[4:])
        elif (kind, code) in ((5, 4), (5, 5)):
            shown["received" if code == 4 else "dropped"] = struct.unpack(order + "Q", value)[0]
        at += 4 + -(-length // 4) * 4
    if shown:
        print(json.dumps(shown))
    place += size
EOF
}

mkdir -p /sys/fs/cgroup/capture/echo
in_group capture/echo bob kopi-echo --bind 192.0.2.1:7777 >/tmp/echo.out 2>&1 &
wait_for grep -q listening /tmp/echo.out
nsenter --net=/run/netns/peer socat -u UDP-RECV:9,bind=192.0.2.2 OPEN:/dev/null 2>/dev/null &
running[sink]=$!
wait_for eval 'in_peer ss -lunH "sport = :9" | grep -q .'
echo=$(kopictl ps --json --user bob)
pid=$(jq '.[0].pid' <<<"$echo") flow=$(jq '.[0].id' <<<"$echo")
running[echo]=$pid
exe=$(command -v kopi-echo)

# All at once, and the same traffic for all.
check "captures run" captures all -w /tmp/all.pcapng
check "several at once" captures pid -w /tmp/pid.pcapng --pid "$pid"
captures user -w /tmp/user.pcapng --user alice
captures exe -w /tmp/exe.pcapng --exe "$exe"
captures cgroup -w /tmp/cgroup.pcapng --cgroup /capture
captures elsewhere -w /tmp/elsewhere.pcapng --cgroup /cap
captures flow -w /tmp/flow.pcapng --flow "$flow"
captures device -w /tmp/device.pcapng -i lo
captures expression -w /tmp/expression.pcapng inbound and src port 6000
captures lines
captures json --json
captures short -w /tmp/short.pcapng -s 30
check "each has a device" [ "$(devices)" = 12 ]
for _ in 1 2 3; do asks; done
check "traffic passes" asks
alice 9
check "they end by a signal, well" stop all pid user exe cgroup elsewhere flow device expression lines json short
check "and take their devices away" [ "$(devices)" = 0 ]

capinfos -Trc /tmp/{all,pid,user,exe,cgroup,elsewhere,flow,device,expression,short}.pcapng >/tmp/infos 2>/dev/null
for wanted in all:9 pid:8 user:1 exe:8 cgroup:8 elsewhere:0 flow:8 device:0 expression:4 short:9; do
	name=${wanted%:*} number=${wanted#*:}
	check "$name: $number packets" [ "$(counted "$name")" = "$number" ]
	check "$name: as many in the file" [ "$(sed -n "s/^.tmp.$name.pcapng\t//p" /tmp/infos)" = "$number" ]
done

read_by /tmp/all.pcapng -T fields -e frame.packet_flags_direction -e frame.interface_name -e ip.src -e ip.dst \
	-e udp.srcport -e udp.dstport -e udp.payload -e frame.comment | tr '\t' ' ' | sort | uniq -c >/tmp/fields
of_bob="bob's kopi-echo\[$pid\] $exe, cgroup /capture/echo, flow $flow\$"
check "tshark has direction, device, headers, payload, and whom it is of" says \
	"^ +4 0x00000001 eth0 192.0.2.2 192.0.2.1 6000 7777 68656c6c6f0a $of_bob" /tmp/fields
check "both ways" says "^ +4 0x00000002 eth0 192.0.2.1 192.0.2.2 7777 6000 68656c6c6f0a $of_bob" /tmp/fields
check "also of a program that lived for a moment" says \
	" 5000 9 68690a alice's kopi-nc\[[0-9]+\] $(command -v kopi-nc), cgroup /[^,]*, flow [0-9]+\$" /tmp/fields
custom() { blocks_of "$1" | jq -s 'map(.custom | select(. != null))'; }
check "the option has it all" eval 'custom /tmp/all.pcapng | jq "map(select(.flow == $flow))" |
	has --argjson pid "$pid" --arg exe "$exe" "length == 8 and all(.pid == \$pid and .exe == \$exe and
		.program == \"kopi-echo\" and .user == \"bob\" and .uid == 1002 and .cgroup_path == \"/capture/echo\" and
		.device == \"eth0\" and .verdict == \"passed\") and
		(map(.direction) | sort) == [\"in\", \"in\", \"in\", \"in\", \"out\", \"out\", \"out\", \"out\"]"'
check "the end has the numbers" eval 'blocks_of /tmp/all.pcapng | tail -1 | has ".received == 9 and .dropped == 0"'
check "packets are cut" eval 'blocks_of /tmp/short.pcapng | jq -s "map(select(.length == 34))" |
	has "length == 8 and all(.captured == 30)"'
check "Wireshark keeps it all when it writes" eval 'editcap /tmp/all.pcapng /tmp/copy.pcapng 2>/dev/null &&
	[ "$(custom /tmp/copy.pcapng)" = "$(custom /tmp/all.pcapng)" ]'
check "lines have process, user and addresses" says \
	"^[0-9:.]+ kopi-echo\[$pid\] bob out 192.0.2.1:7777 > 192.0.2.2:6000 length 6 eth0$" /tmp/lines.out
check "JSON has them, too" eval 'jq -s . /tmp/json.out | has --argjson pid "$pid" "length == 9 and
	(map(select(.pid == \$pid and .direction == \"in\" and .source == \"192.0.2.2\" and .destination_port == 7777 and
		.payload == 6 and .length == 34)) | length) == 4"'
check "and the time" eval 'head -1 /tmp/json.out | has ".time | sub(\"[.][0-9]+Z\"; \"Z\") | fromdateiso8601 > 0"'

in_host nft -f - <<'EOF'
table ip capture {
	chain output {
		type filter hook output priority 0
		udp dport 6666 drop
	}
}
EOF
handle=$(kopictl rule add user charlie rate 1pps burst 1 allow)
captures dropped --dropped -w /tmp/dropped.pcapng
captures reasons --dropped
alice 6666
asks
in_host setpriv --reuid charlie --regid charlie --clear-groups -- kopi-gen flood 192.0.2.2:9 -n 20 >/dev/null 2>&1
stop dropped reasons
check "what a firewall dropped is said, with the process" says \
	'^[0-9:.]+ kopi-nc\[[0-9]+\] alice out 192.0.2.1:5000 > 192.0.2.2:6666 length 3 .*dropped: NETFILTER_DROP$' /tmp/reasons.out
check "once" [ "$(grep -c NETFILTER_DROP /tmp/reasons.out)" = 1 ]
check "so is what a rule refused" says "kopi-gen\[[0-9]+\] charlie out .* refused: rate of rule $handle\$" /tmp/reasons.out
check "and nothing that passed" eval '! grep -vE "(dropped|refused): " /tmp/reasons.out'
check "a file has it" eval 'custom /tmp/dropped.pcapng | jq "map(select(.user == \"alice\"))" |
	has "length == 1 and .[0].verdict == \"dropped\" and .[0].reason == \"NETFILTER_DROP\""'
check "in words, too" eval 'blocks_of /tmp/dropped.pcapng | jq -r ".comment // empty" |
	grep -qE "^alice.s kopi-nc.*, dropped: NETFILTER_DROP$"'
kopictl rule flush

captures summary --summary
captures sums --summary --json
in_host setpriv --reuid charlie --regid charlie --clear-groups -- kopi-gen flood 192.0.2.2:9 -n 2000 >/tmp/flood.out 2>&1
asks
check "sums are made" stop summary sums
check "who floods is in the first line" eval 'sed -n 2p /tmp/summary.out | grep -qE "^ *[0-9]+ +kopi-gen +charlie +1 +2000 +0 "'
check "others follow" eval 'sed -n 3p /tmp/summary.out | grep -qE "^ *$pid +kopi-echo +bob +1 +1 +1 +68 +0 "'
check "JSON has it, too" eval 'has ".[0].program == \"kopi-gen\" and .[0].packets == 2000 and .[0].packets_per_second > 1" </tmp/sums.out'

# While accept() makes a flow of a connection, it has no number yet.
captures young --summary
starts accepts python3 -uc 'import sys
sys.path.insert(0, "/kopi/selftests")
import kopi
with kopi.listener(address=("192.0.2.1", 7788)) as sock:
    print("listens")
    while True: sock.accept()[0].close()'
wait_for grep -q listens /tmp/accepts.out
in_peer python3 -c 'import socket
for _ in range(1000):
    with socket.create_connection(("192.0.2.1", 7788)) as sock:
        try:
            for _ in range(8): sock.send(b"early")
        except OSError: pass'
check "connections that are young end no capture" stop young
kill "${running[accepts]}"
unset 'running[accepts]'

captures slow -w /tmp/slow.pcapng
kill -STOP "${running[slow]}"
check "one that doesn't keep up holds nothing up" eval \
	'in_host timeout 300 kopi-gen flood 192.0.2.2:9 -n 20000 --size 1400 | has ".sent == 20000 and .errors == {}"'
kill -CONT "${running[slow]}"
stop slow
lost=$(sed -n 's/^[0-9]* packets captured, \([0-9]*\) dropped by the capture$/\1/p' /tmp/slow.err)
check "what it has no room for is counted" [ "$lost" -gt 0 ]
check "also in the file" eval 'blocks_of /tmp/slow.pcapng | tail -1 | has ".received == 20000 and .dropped == $lost"'

check "--count ends it" eval 'captures count -c 2 port 7777; asks; wait "${running[count]}" && [ "$(wc -l </tmp/count.out)" = 2 ]'
check "--seconds, too" ends_with 0 kopictl capture --seconds 0.5
check "and says how many there were" says '^0 packets captured, 0 dropped by the capture$' /tmp/out

# A reader that reads while packets come, and one that goes.
mkfifo /tmp/pipe
tshark -n -l -r - -T fields -e frame.comment </tmp/pipe >/tmp/live 2>/tmp/live.err &
running[reader]=$!
nsenter --net=/run/netns/host kopictl capture -w - udp port 7777 >/tmp/pipe 2>/tmp/writer.err &
running[writer]=$!
wait_for grep -q '^capturing on ' /tmp/writer.err
asks
live() { [ "$(grep -c "kopi-echo\[$pid\]" /tmp/live)" = 2 ]; }
check "a pipe is live" wait_for live
# At SIGTERM it would wait for one more packet.
kill -9 "${running[reader]}"
wait "${running[reader]}" 2>/dev/null
unset 'running[reader]'
gone() { ! kill -0 "${running[writer]}"; }
check "it ends when nobody reads" wait_for gone
kill "${running[writer]}" 2>/dev/null
check "quietly" eval 'wait "${running[writer]}" && ! grep -v "^capturing on " /tmp/writer.err'
check "and takes its device away" [ "$(devices)" = 0 ]

mkfifo /tmp/stuck
bash -c 'exec sleep 600' </tmp/stuck &
running[sleeper]=$!
nsenter --net=/run/netns/host kopictl capture >/tmp/stuck 2>/tmp/stuck.err &
running[stuck]=$!
wait_for grep -q '^capturing on ' /tmp/stuck.err
# Far more lines than the pipe has room for.
in_host kopi-gen flood 192.0.2.2:9 -n 3000 >/tmp/flood.out
is_full() {
	python3 -c 'import os, select, sys
pipe = os.open(sys.argv[1], os.O_WRONLY | os.O_NONBLOCK)
sys.exit(bool(select.select([], [pipe], [], 0)[1]))' "$1"
}
check "a pipe that nobody reads gets full" wait_for is_full /tmp/stuck
kill "${running[stuck]}"
gone() { ! kill -0 "${running[stuck]}"; }
check "a reader that stopped to read doesn't keep a signal from ending it" wait_for gone
check "as it says" says '^kopictl: standard output takes no more' /tmp/stuck.err
check "and takes its device away" [ "$(devices)" = 0 ]
kill "${running[sleeper]}"
unset 'running[stuck]' 'running[sleeper]'

# As nohup does it; a script's background ignores SIGINT by itself.
trap '' HUP
captures ignoring
trap - HUP
# HUP and INT: none that is sent waits, either.
mask=$(sed -n 's/^SigIgn:\t//p' "/proc/${running[ignoring]}/status")
check "signals that were ignored before are ignored: $mask" [ $((0x$mask & 3)) = 3 ]
kill -HUP "${running[ignoring]}"
kill -INT "${running[ignoring]}"
asks
check "and end nothing" eval 'stop ignoring && [ "$(counted ignoring)" = 2 ]'

captures clock
# Until nothing is left of what came before it had its filter.
sleep 1
date -s '1 hour ago' >/dev/null
asks
stop clock
date -s '1 hour' >/dev/null
check "a clock that is set back hides nothing" [ "$(counted clock)" = 2 ]

captures killed -w /tmp/killed.pcapng
kill -9 "${running[killed]}"
wait "${running[killed]}" 2>/dev/null
unset 'running[killed]'
check "one that is killed leaves its device" [ "$(devices)" = 1 ]
check "which holds nothing up" eval "in_host timeout 20 kopi-gen flood 192.0.2.2:9 -n 3000 >/tmp/flood.out"
captures next
check "the next one takes it away, and has one of its own" [ "$(devices)" = 1 ]
asks
stop next
check "sees packets on it" [ "$(counted next)" = 2 ]
check "and takes it away" [ "$(devices)" = 0 ]
captures killed
kill -9 "${running[killed]}"
wait "${running[killed]}" 2>/dev/null
unset 'running[killed]'
starts reader tcpdump -ni kopimon0 -w /dev/null
wait_for grep -q '^tcpdump: listening' /tmp/reader.err
captures next
check "one that somebody reads is left alone" [ "$(devices)" = 2 ]
stop next
kill "${running[reader]}"
wait "${running[reader]}"
unset 'running[reader]'

# As in a container with the network of its host: nothing of the other's files is seen.
apart() { captures_by "$1" unshare -m bash -c 'mount -t tmpfs none /run && exec kopictl capture "$@"' apart "${@:2}"; }
apart first -w /tmp/first.pcapng
apart second -w /tmp/second.pcapng
check "captures that see different files have devices of their own" [ "$(devices)" = 2 ]
check "and the one that was killed left none" says '^capturing on kopimon0$' /tmp/first.err
asks
check "each sees the packets" eval 'stop first second && [ "$(counted first) $(counted second)" = "2 2" ]'
check "and takes its device away" [ "$(devices)" = 0 ]

# Many that find the same one that was left.
captures killed
kill -9 "${running[killed]}"
wait "${running[killed]}" 2>/dev/null
unset 'running[killed]'
for number in $(seq 6); do starts "many$number" kopictl capture; done
for number in $(seq 6); do wait_for grep -q '^capturing on ' "/tmp/many$number.err"; done
check "of many at once, each has a device" eval '[ "$(devices)" = 6 ] && [ "$(sort -u /tmp/many?.err | wc -l)" = 6 ]'
asks
check "and the packets" eval 'stop many{1..6} && [ "$(for number in $(seq 6); do counted "many$number"; done | sort | uniq -c |
	tr -s " ")" = " 6 2" ]'
ip -n host link add kopimon0 type kopimon
captures other
check "one that somebody made stays" eval 'stop other && ip -n host link show kopimon0 >/dev/null'
ip -n host link del kopimon0

check "others may not" ends_with 4 in_host setpriv --reuid bob --regid bob --clear-groups -- kopictl capture
check "and learn what it takes" says 'CAP_NET_ADMIN and CAP_NET_RAW' /tmp/out
check "expressions are checked" ends_with 2 kopictl capture udp prot 53
check "by libpcap" says 'filter: .*syntax error' /tmp/out
check "no device of that name" ends_with 1 kopictl capture -i nowhere0
check "no program of that path" ends_with 1 kopictl capture --exe /nowhere
check "no user of that name" ends_with 2 kopictl capture --user nobody-here
check "a file isn't JSON" ends_with 2 kopictl capture --json -w /tmp/x
check "nothing is left" [ "$(devices)" = 0 ]
finish
