# SPDX-License-Identifier: GPL-2.0
# Sourced by what runs Debian's servers: each with a configuration in $work, the current directory, and $workers
# threads or processes. They answer at 192.0.2.1. As on a machine of Debian's, those that have a user of their own
# make their sockets as root and then become that user, who can write to $work.
# shellcheck shell=bash
# shellcheck disable=SC2016,SC2086,SC2154 # Zones begin with a $; names without spaces; the caller's variables.

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
run_nsd() {
	cat >nsd.conf <<-END
		server:
		  ip-address: ${address:-192.0.2.1}
		  server-count: $workers
		  username: nsd
		  rrl-ratelimit: 0
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
		printf 'server:\n interface: 192.0.2.1\n access-control: 0.0.0.0/0 allow\n chroot: ""\n username: unbound\n'
		printf ' directory: "%s"\n pidfile: ""\n use-syslog: no\n do-daemonize: no\n num-threads: %d\n' $work $workers
		printf ' max-udp-size: 4096\n local-zone: "example.test." static\n'
		zone | sed -n "s/^\([a-z]*[0-9]*\) 60 IN \(A\|AAAA\|TXT\) \(.*\)/ local-data: '\1.example.test. 60 IN \2 \3'/p"
	} >unbound.conf
	exec "$@" unbound -d -c $work/unbound.conf
}

run_knot() {
	install -d -o knot -g knot knot
	cat >knot.conf <<-END
		server:
		    listen: 192.0.2.1@53
		    rundir: $work/knot
		    udp-workers: $workers
		    udp-max-payload: 4096
		    user: knot:knot
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
	exec "$@" named -g -u bind -n $workers -c $work/named.conf
}

run_dnsmasq() {
	local records=()
	for number in {1..30}; do
		records+=("--host-record=host$number.example.test,198.51.100.$number,2001:db8:1::$number")
	done
	for number in {1..12}; do records+=("--txt-record=long.example.test,$(printf '%s%0180d' "$number" 0)"); done
	exec "$@" dnsmasq -k -C /dev/null --no-resolv --no-hosts --user=dnsmasq --pid-file= --listen-address=192.0.2.1 \
		--bind-interfaces --host-record=ns.example.test,192.0.2.1 --local=/example.test/ --edns-packet-max=4096 \
		--enable-tftp --tftp-root=$work/tftp --log-facility=- "${records[@]}"
}

run_tftpd() { exec "$@" in.tftpd -L -a 192.0.2.1:69 -s $work/tftp -u root; }

run_snmpd() {
	printf 'rocommunity public\nagentaddress udp:192.0.2.1:161\nsysName test\n' >snmpd.conf
	exec "$@" snmpd -f -Lo -C -c $work/snmpd.conf -I -smux,mteTrigger,mteTriggerConf
}

run_memcached() { exec "$@" memcached -u memcache -U 11211 -p 11211 -l 192.0.2.1 -t $workers; }
