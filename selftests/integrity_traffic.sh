#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Datagrams of all sizes arrive whole, between KOPI and UDP in all combinations,
# by IPv4 and IPv6, through NICs and through loopback.

. "$(dirname "$0")/lib.sh"

count=${COUNT:-2500}

# transfer RECEIVER-NS SENDER-NS ADDRESS RECEIVER-OPTIONS SENDER-OPTIONS
transfer() {
	local status=0 receiver
	rm -f /tmp/recv.out
	# shellcheck disable=SC2086 # Words are wanted.
	ip netns exec "$1" kopi-gen recv --bind "$3" --count "$count" --timeout 600 $4 >/tmp/recv.out 2>&1 &
	receiver=$!
	# Ten thousand flows take a debug kernel minutes to open, on both sides.
	TENTHS=3000 wait_for grep -q '^listening' /tmp/recv.out || status=1
	# shellcheck disable=SC2086
	ip netns exec "$2" kopi-gen send "$3" --count "$count" $5 >/tmp/send.out 2>&1 || status=1
	wait "$receiver" || status=1
	[ "$status" = 0 ] || cat /tmp/send.out /tmp/recv.out
	return "$status"
}

all='--size 0..65507'
for address in 192.0.2.1 '[2001:db8::1]'; do
	check "KOPI to KOPI, NICs, $address" transfer host peer "$address:9100" "" "$all"
	check "UDP to KOPI, NICs, $address" transfer host peer "$address:9101" "" "$all --plain"
	check "KOPI to UDP, NICs, $address" transfer host peer "$address:9102" "--plain" "$all"
done
for address in 127.0.0.1 '[::1]'; do
	check "KOPI to KOPI, loopback, $address" transfer host host "$address:9103" "" "$all"
done
check "GSO packets, NICs" transfer host peer 192.0.2.1:9104 "--offloads" "--size 1400 --offloads"
check "merged GSO packets, loopback" transfer host host 127.0.0.1:9105 "--offloads --merged" "--size 1400 --offloads"
check "10,000 flows on one channel" \
	transfer host host 127.0.0.1:20000 "--flows 10000" "--size 0..1000 --flows 10000 --ports 10000"
finish
