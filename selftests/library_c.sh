#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The C library sends, receives, waits and fails as kopi.h says, for any user and with several threads;
# its examples work; without the module it says so.

. "$(dirname "$0")/lib.sh"

listed=$(library_c list)
check "there are tests" [ "$(wc -l <<<"$listed")" -ge 15 ]
for name in $listed; do
	check "$name, as root" in_host library_c "$name"
	check "$name, as bob" in_host setpriv --reuid bob --regid bob --clear-groups library_c "$name"
done

# The device is slow, and the send buffer holds three packets.
in_host tc qdisc add dev eth0 root tbf rate 1mbit burst 2000 latency 5s
check "a full send buffer gives EAGAIN, and empties" in_host library_c full_send_buffer c0000202
in_host tc qdisc del dev eth0 root

nsenter --net=/run/netns/host libkopi-echo 0.0.0.0 7777 >/tmp/echo.out 2>&1 &
echo=$!
nsenter --net=/run/netns/host libkopi-echo 2001:db8::1 7777 >/tmp/echo6.out 2>&1 &
echo6=$!
check "libkopi-echo starts" wait_for grep -q listening /tmp/echo.out
check "libkopi-echo starts, by IPv6" wait_for grep -q listening /tmp/echo6.out
check "it answers the peer" echoes 7777 hello
# All hosts, of this and of any network.
asks_all='import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth1")
s.bind(("192.0.2.2", 0))
s.settimeout(20)
s.sendto(b"who?", (sys.argv[1], 7777))
assert s.recvfrom(100) == (b"who?", ("192.0.2.1", 7777))'
for all in 224.0.0.1 255.255.255.255; do
	check "it answers a question to $all, from an address of its own" in_peer python3 -c "$asks_all" $all
done
check "it answers a long question" eval '[ "$(head -c 9000 /dev/zero | tr "\0" x |
	in_peer socat -b 65536 -t 10 -T 10 - UDP:192.0.2.1:7777,end-close 2>/dev/null | head -c 9000 | wc -c)" = 9000 ]'
check "and by IPv6" [ "$(in_peer timeout 30 socat -t 5 - 'UDP6:[2001:db8::1]:7777' <<<six)" = six ]

# The CPU time of a process, in hundredths of a second.
cpu_time() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }
handle=$(in_host kopictl rule add local-port 7777 deny)
check "libkopi-echo says that a rule stops it" wait_for grep -q 'Permission denied' /tmp/echo.out
before=$(cpu_time $echo)
sleep 2
check "and sleeps on" [ $(($(cpu_time $echo) - before)) -lt 5 ]
in_host kopictl rule del "$handle"
check "without the rule it answers again" echoes 7777 again
kill $echo $echo6

# How many of the datagrams come. QEMU hands one over before those that wait because the peer's NIC had no
# buffer (net/queue.c, qemu_net_queue_send()), so their order is looked at where they leave.
receiver='import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# SO_RCVBUFFORCE
s.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
s.bind(("192.0.2.2", 7778))
s.settimeout(60)
print("ready", flush=True)
missing = {b"%08d\n" % i for i in range(5000)}
try:
	while missing:
		missing.remove(s.recv(2048))
finally:
	print(len(missing), "missing", flush=True)'
nsenter --net=/run/netns/peer python3 -c "$receiver" >/tmp/receiver.out 2>&1 &
# fq_codel drops what has waited for 5 ms, when the device is slow for a while, as on a busy machine.
in_host tc qdisc replace dev eth0 root pfifo
nsenter --net=/run/netns/host tcpdump -i eth0 -Q out -B 16384 -U -w /tmp/sent.pcap udp dst port 7778 \
	2>/tmp/tcpdump.err &
capture=$!
wait_for grep -q ready /tmp/receiver.out
wait_for grep -q listening /tmp/tcpdump.err
in_host libkopi-send 192.0.2.2 7778 5000 >/tmp/send.out 2>&1
check "libkopi-send sends 5000 datagrams: $(tail -n 1 /tmp/send.out)" \
	grep -q '^sent 5000 datagrams, 45000 bytes, 0 errors$' /tmp/send.out
check "all of them arrive" wait_for grep -q '^0 missing' /tmp/receiver.out
sed 's/^/# /' /tmp/receiver.out
numbers() { tcpdump -r /tmp/sent.pcap -A 2>/dev/null | grep -aoE '[0-9]{8}$'; }
in_order() { diff <(seq -f %08g 0 4999) <(numbers); }
check "and left in order" wait_for in_order
kill $capture
in_host tc qdisc del dev eth0 root
check "libkopi-send says what is wrong" eval \
	'! in_host libkopi-send 203.0.113.1 9 1 2>/tmp/send.err && grep -q "connect: Network is unreachable" /tmp/send.err'

# Runs a program that a filter keeps from sockets of family 19: kept COMMAND...
kept() {
	python3 -c 'import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 3, 41), (0x20, 0, 0, 16), (0x15, 0, 1, 19),  # socket(), its domain
        (6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)]  # EPERM; allowed
program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in code))
filter = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(code), ctypes.addressof(program)))
prctl = ctypes.CDLL(None).prctl
assert prctl(38, 1, 0, 0, 0) == 0 and prctl(22, 2, filter) == 0
os.execvp(sys.argv[1], sys.argv[1:])' "$@"
}
check "where seccomp forbids it, the example doesn't blame the module" eval \
	'! kept timeout 20 libkopi-echo 127.0.0.1 7777 2>/tmp/echo.err && grep -q "may not open KOPI sockets" /tmp/echo.err'
check "nor does kopi-echo" eval \
	'! kept timeout 20 kopi-echo --bind 127.0.0.1:7777 2>/tmp/echo.err && grep -q "may not open KOPI sockets" /tmp/echo.err'
check "a wrong KOPI_FAMILY is named" eval \
	'! KOPI_FAMILY=2 timeout 20 kopi-echo --bind 127.0.0.1:7777 2>/tmp/echo.err && grep -q "KOPI_FAMILY is not the number" /tmp/echo.err'

check "nothing holds the module" wait_for unused
rmmod kopi
check "without the module: EAFNOSUPPORT" library_c absent
check "and the example says so" eval \
	'! timeout 20 libkopi-echo 127.0.0.1 7777 2>/tmp/echo.err && grep -q "the kopi module is not loaded" /tmp/echo.err'
insmod "$here/../build/$(uname -r)/kopi.ko"
finish
