# SPDX-License-Identifier: GPL-2.0
# Sourced by what runs programs of Debian's other than those of servers.sh: proxies, clocks, tunnels, terminals,
# media, QUIC. For a program NAME, run_NAME starts it (with words before it, such as `kopi run`), up_NAME says
# whether it can be asked, ask_NAME prints what it answers, and before_NAME and after_NAME are what it needs beside
# it. $work is the current directory. They serve at 192.0.2.1, for the machine `peer`, which is 192.0.2.2.
# shellcheck shell=bash
# shellcheck disable=SC2154 # The caller's variables.

# Starts a command in the peer's namespace, which aside_ends() ends: aside COMMAND...
aside() {
	nsenter --net=/run/netns/peer "$@" >>aside.log 2>&1 &
	asides+=($!)
}
asides=()
aside_ends() {
	kill "${asides[@]}" 2>/dev/null
	wait "${asides[@]}"
	asides=()
}

# dnsdist, between the peer and a server that is the peer's, too: its sockets of both sides are flows.
before_dnsdist() {
	aside bash -c "$(declare -f run_nsd); work=$work workers=1 address=192.0.2.2@5300; run_nsd"
	wait_for eval '[ -n "$(in_peer ss -Hunl sport = 5300)" ]'
}
run_dnsdist() {
	cat >dnsdist.conf <<-END
		setLocal("192.0.2.1:53")
		addACL("0.0.0.0/0")
		setSecurityPollSuffix("")
		-- A machine may be slow.
		setUDPTimeout(20)
		newServer({address="192.0.2.2:5300", checkName="ns.example.test.", checkTimeout=10000, maxCheckFailures=9})
	END
	exec "$@" dnsdist --supervised --disable-syslog -C "$work/dnsdist.conf"
}
after_dnsdist() { aside_ends; }

# The clock of the machine stays as it is, at both ends. Four measurements, interleaved: each asks for the time at
# which the answer before it left, which the server has of the socket's error queue.
run_chrony() {
	printf '%s\n' 'local stratum 5' 'allow all' 'cmdport 0' 'bindaddress 192.0.2.1' >chrony.conf
	exec "$@" chronyd -x -d -u root -f "$work/chrony.conf"
}
chrony_asks() { in_peer chronyd -Q -u root -t "$1" "server 192.0.2.1 iburst ${*:2}" 'cmdport 0' 2>&1; }
up_chrony() { chrony_asks 3 maxsamples 1 | grep -q 'clock wrong by'; }
ask_chrony() {
	for _ in 1 2 3; do chrony_asks 20 maxsamples 1; done |
		sed -n 's/.*\(clock wrong by\) -\?\([0-9]*\)\..*/\1 \2 s/p'
	chrony_asks 30 xleave | sed -n 's/.*\(clock wrong by\) -\?\([0-9]*\)\..*/interleaved: \1 \2 s/p'
}

# Its own load: two clients, each of which sends to the other through the server.
run_coturn() {
	exec "$@" turnserver -n --listening-ip 192.0.2.1 --relay-ip 192.0.2.1 --no-tcp --no-tls --no-dtls --no-cli \
		--user user:secret --realm test --lt-cred-mech -l stdout --simple-log --pidfile "$work/turn.pid"
}
# The client waits for an answer for ever.
up_coturn() { in_peer timeout 2 turnutils_stunclient 192.0.2.1 | grep -q reflexive; }
ask_coturn() {
	in_peer timeout 120 turnutils_uclient -u user -w secret -y -n 20 -m 2 -l 200 192.0.2.1 2>&1 |
		sed -n 's/.*\(tot_send_msgs=.*\)/\1/p; s/.*\(Total lost packets.*\)/\1/p' | tail -n 2
}

# iperf3 in a tunnel, both ways.
openvpn_end() {
	echo openvpn --dev tunnel --dev-type tun --proto udp --disable-dco --cert cert.pem --key key.pem --dh none \
		--peer-fingerprint "$(openssl x509 -in cert.pem -noout -fingerprint -sha256 | cut -d= -f2)" \
		--data-ciphers AES-128-GCM --verb 3 --nobind
}
before_openvpn() { modprobe tun && certificate; }
run_openvpn() {
	# shellcheck disable=SC2046 # Words.
	exec "$@" $(openvpn_end | sed 's/ --nobind//') --tls-server --local 192.0.2.1 --lport 1194 --ifconfig 10.9.0.1 10.9.0.2
}
up_openvpn() {
	# shellcheck disable=SC2046 # Words.
	[ ${#asides[@]} != 0 ] ||
		aside $(openvpn_end) --tls-client --remote 192.0.2.1 1194 --connect-retry 1 --ifconfig 10.9.0.2 10.9.0.1
	in_peer ping -qc1 -W1 10.9.0.1
}
ask_openvpn() {
	nsenter --net=/run/netns/host timeout 120 iperf3 -s -1 -B 10.9.0.1 >iperf3.tunnel &
	wait_for eval '[ -n "$(in_host ss -Htln sport = 5201)" ]'
	in_peer timeout 60 iperf3 -J -c 10.9.0.1 -n 600k | jq '.end.sum_received.bytes >= 600000'
	wait $!
	in_peer ping -c3 -i0.2 -s 3000 10.9.0.1 | grep -o '3 received, 0% packet loss'
}
after_openvpn() { aside_ends; }

# A session of a terminal: what is typed at one end, and is said at the other.
run_mosh() {
	exec "$@" mosh-server new -v -i 192.0.2.1 -p 60001 -l LANG=C.UTF-8 -- \
		bash -c 'read -r line; seq 200; echo "the program read $line"; sleep 1'
}
up_mosh() { [ -n "$(in_host ss -Hunl sport = 60001)" ]; }
ask_mosh() {
	local key
	key=$(sed -n 's/^MOSH CONNECT 60001 \([^\r]*\).*/\1/p' "$said")
	rm -f typescript
	{
		wait_for grep -q 1049h typescript
		echo 'a line'
		wait_for grep -q '^Script done' typescript
	} | LC_ALL=C.UTF-8 TERM=xterm MOSH_KEY=$key in_peer timeout 60 script -qefc \
		'stty rows 24 cols 80; mosh-client 192.0.2.1 60001' typescript >/dev/null
	grep -o 'the program read a line' typescript | head -n 1
}
# One that nobody has asked waits for that.
after_mosh() { ! pkill mosh-server; }

# A file, which the peer sends as a stream of datagrams, and gets back.
run_gstreamer() {
	exec "$@" gst-launch-1.0 -q udpsrc address=192.0.2.1 port=5004 ! udpsink host=192.0.2.2 port=5005 sync=false
}
before_gstreamer() { rm -f returned && aside gst-launch-1.0 -q udpsrc port=5005 ! filesink location=returned buffer-mode=unbuffered; }
up_gstreamer() { [ -n "$(in_host ss -Hunl sport = 5004)" ] && [ -n "$(in_peer ss -Hunl sport = 5005)" ]; }
ask_gstreamer() {
	in_peer gst-launch-1.0 -q filesrc location=tftp/file blocksize=1000 ! identity sleep-time=3000 ! \
		udpsink host=192.0.2.1 port=5004 sync=false
	wait_for eval '[ "$(stat -c %s returned)" = 100000 ]'
	cksum <returned
}
after_gstreamer() { aside_ends; }

run_sockperf() { exec "$@" sockperf server -i 192.0.2.1 -p 11111; }
up_sockperf() { [ -n "$(in_host ss -Hunl sport = 11111)" ]; }
ask_sockperf() { in_peer sockperf ping-pong -i 192.0.2.1 -p 11111 -m 100 -t 1 2>&1 | grep -o '# dropped messages.*'; }

# QUIC: a stream of Python's, HTTP/3 by nginx for curl, and by curl from nginx.
before_aioquic() { certificate; }
run_aioquic() { exec "$@" python3 "$here/preload/quic.py" serve 192.0.2.1 4433; }
up_aioquic() { [ -n "$(in_host ss -Hunl sport = 4433)" ]; }
ask_aioquic() { in_peer timeout 120 python3 "$here/preload/quic.py" ask 192.0.2.1 4433; }

run_nginx() {
	cat >"nginx.$1.conf" <<-END
		daemon off;
		user root;
		pid $work/nginx.$1.pid;
		error_log stderr;
		events { }
		http {
			access_log off;
			server {
				listen $1:8443 quic reuseport;
				ssl_certificate $work/cert.pem;
				ssl_certificate_key $work/key.pem;
				location / { root $work/tftp; }
			}
		}
	END
	exec "${@:2}" nginx -e stderr -c "$work/nginx.$1.conf"
}
get_by_quic() { curl -sk --http3-only --max-time 60 --retry 2 "https://$1:8443/file" | cksum; }
before_http3() { certificate; }
run_http3() { run_nginx 192.0.2.1 "$@"; }
up_http3() { [ -n "$(in_host ss -Hunl sport = 8443)" ]; }
ask_http3() { for _ in 1 2; do in_peer bash -c "$(declare -f get_by_quic); get_by_quic 192.0.2.1"; done; }

before_curl() {
	certificate
	aside bash -c "$(declare -f run_nginx); work=$work; run_nginx 192.0.2.2"
	wait_for eval '[ -n "$(in_peer ss -Hunl sport = 8443)" ]'
}
run_curl() { exec "$@" curl -sk --http3-only --max-time 60 --retry 2 https://192.0.2.2:8443/file -o fetched; }
up_curl() { true; }
ask_curl() { wait_for eval '! kill -0 $server' && cksum <fetched; }
after_curl() { aside_ends; }

# Addresses, by dnsmasq: of three clients.
run_dhcp() {
	exec "$@" dnsmasq -k -C /dev/null --port=0 --user=root --pid-file= --log-facility=- --interface=eth0 \
		--bind-interfaces --dhcp-range=192.0.2.100,192.0.2.120,255.255.255.0,5m --dhcp-leasefile="$work/leases" \
		--dhcp-authoritative --no-ping
}
lease() { in_peer busybox udhcpc -i eth1 -n -q -f -t 5 -T 2 -s /bin/true -x "0x3d:00aabbcc0$1" 2>&1 | grep -o 'lease of [0-9.]* obtained'; }
up_dhcp() { lease 9; }
ask_dhcp() { for client in 1 2 3; do lease $client; done; }

# Go's make their system calls without the C library, and work with ordinary sockets.
run_wireguard() { exec "$@" wireguard-go -f tunnel; }
before_wireguard() {
	local end
	modprobe tun
	for end in host peer; do [ -s $end.key ] || wg genkey >$end.key; done
	ip -n peer link add tunnel type wireguard
	in_peer wg set tunnel private-key peer.key peer "$(wg pubkey <host.key)" endpoint 192.0.2.1:51820 allowed-ips 10.9.0.0/24
	ip -n peer address add 10.9.0.2/24 dev tunnel
	ip -n peer link set tunnel up
}
# The host's end, once it is there.
up_wireguard() {
	in_host wg set tunnel listen-port 51820 private-key host.key peer "$(wg pubkey <peer.key)" allowed-ips 10.9.0.0/24 &&
		ip -n host address replace 10.9.0.1/24 dev tunnel && ip -n host link set tunnel up &&
		in_peer ping -qc1 -W1 10.9.0.1
}
ask_wireguard() { in_peer ping -c5 -i0.2 -s 1200 10.9.0.1 | grep -o '5 received, 0% packet loss'; }
after_wireguard() { ip -n peer link del tunnel; }

run_syncthing() {
	STNODEFAULTFOLDER=1 HOME=$work exec "$@" syncthing serve --no-browser --no-restart --no-upgrade --home="$work/syncthing" \
		--gui-address=127.0.0.1:8384
}
up_syncthing() { ask_syncthing | grep -q OK; }
ask_syncthing() { in_host curl -s --max-time 5 http://127.0.0.1:8384/rest/noauth/health; }
