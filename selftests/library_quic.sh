#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Files by QUIC, of quinn's, by the crate's sockets: whole, to and from endpoints with quinn's own UDP sockets, with
# GSO, GRO and ECN, the path's MTU found; also where packets are lost, refused by a filter, protected by IPsec, or
# have to wait.

. "$(dirname "$0")/lib.sh"

example=$here/../build/cargo/debug/examples/quic_file
mkdir -p /tmp/quic && cd /tmp/quic || exit
certificate
head -c 600000 /dev/urandom >file

# What the rings of the host's namespace have carried.
stats() { in_host kopictl --json stats | jq ".stats.$1"; }
# Serves by the host to a client of the peer: whether the file arrives: transfer ADDRESS [SERVER'S WORD] [CLIENT'S]
transfer() {
	local ended=1
	rm -f got
	: >served
	: >fetched
	nsenter --net=/run/netns/host "$example" serve "$1:4433" file ${2:+"$2"} >served 2>&1 &
	server=$!
	wait_for grep -q listening served &&
		in_peer timeout 120 "$example" fetch "$1:4433" got ${3:+"$3"} >fetched 2>&1 && cmp -s file got && ended=0
	kill $server 2>/dev/null
	wait $server 2>/dev/null
	[ $ended = 0 ] || sed 's/^/# /' served fetched
	return $ended
}

mtu() { grep -q 'MTU 1452' fetched; }
for address in 192.0.2.1 '[2001:db8::1]'; do
	before=$(stats tx_packets)
	check "rings to a UDP socket, $address" transfer "$address" '' --plain
	sent=$(($(stats tx_packets) - before))
	check "the rings sent it: $sent datagrams" [ $sent -gt 400 ]
	# On a busy machine quinn may believe that it loses large packets.
	check "the path's MTU is found: $(cat fetched)" eval 'mtu || { transfer "$address" "" --plain && mtu; }'
	check "a UDP socket to rings, $address" transfer "$address" --plain ''
	check "and its MTU, there" eval 'mtu || { transfer "$address" --plain "" && mtu; }'
	check "rings to rings, $address" transfer "$address"
done

in_host nft -f - <<'END'
table inet quic {
	counter marked { }
	counter others { }
	chain out {
		type filter hook output priority 0
		udp sport 4433 ip ecn ect0 counter name marked return
		udp sport 4433 counter name others
	}
}
END
counted() { in_host nft -j list counter inet quic "$1" | jq '.nftables[] | select(.counter) | .counter.packets'; }
# After a pause that looks like a loss, packets are short.
for _ in {1..5}; do
	in_host nft reset counters >/dev/null
	transfer 192.0.2.1 '' --plain
	[ "$(counted marked)" -ge 200 ] || break
done
check "each says that it can be marked (ECN)" [ "$(counted others)" = 0 ]
check "by GSO packets: $(counted marked)" eval '[ $(counted marked) -gt 10 ] && [ $(counted marked) -lt 200 ]'
in_host nft delete table inet quic

# Has a namespace protect what goes to an address from another: protect NAMESPACE out|in SOURCE DESTINATION
protect() {
	ip -n "$1" xfrm state add src "$3" dst "$4" proto esp spi 0x101 reqid 7 mode transport \
		aead 'rfc4106(gcm(aes))' "0x$(printf '11%.0s' {1..20})" 128
	ip -n "$1" xfrm policy add src "$3/32" dst "$4/32" dir "$2" \
		tmpl src "$3" dst "$4" proto esp reqid 7 mode transport
}
for name in host peer; do
	protect $name "$([ $name = host ] && echo out || echo in)" 192.0.2.1 192.0.2.2
	protect $name "$([ $name = host ] && echo in || echo out)" 192.0.2.2 192.0.2.1
done
# Where the kernel has no GSO.
before=$(stats tx_drop_other)
check "IPsec protects the path" transfer 192.0.2.1 '' --plain
refused=$(($(stats tx_drop_other) - before))
check "the first GSO packets were refused: $refused" [ $refused -gt 0 ]
for name in host peer; do
	ip -n $name xfrm policy flush
	ip -n $name xfrm state flush
done

in_host tc qdisc add dev eth0 root netem loss 3% delay 5ms
check "packets are lost" transfer 192.0.2.1 '' --plain
check "at both ends" transfer '[2001:db8::1]'
in_host tc qdisc replace dev eth0 root tbf rate 20mbit burst 4000 latency 100ms
check "a slow device" transfer 192.0.2.1 '' --plain
in_host tc qdisc del dev eth0 root
in_host nft 'table inet quic { chain o { type filter hook output priority 0; udp sport 4433 numgen random mod 20 == 0 drop; }; }'
check "a filter refuses some: EPERM" transfer 192.0.2.1 '' --plain
in_host nft delete table inet quic
in_host kopictl rule add direction out local-port 4433 rate 3Mbit allow >/dev/null
check "a rule has a rate" transfer 192.0.2.1 '' --plain
in_host kopictl rule flush
check "nothing holds the module" wait_for unused
finish
