#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Only bob's programs may use port 5432, and only charlie's 3306, in both
# directions; the log names who tries.

. "$(dirname "$0")/lib.sh"

title "Scenario 2, ports: 5432 is bob's and 3306 is charlie's, whoever binds them."
cleanup() {
	for user in alice bob charlie; do pkill -u "$user" kopi; done
	wait
	in_host nft delete table inet ports 2>/dev/null
	rmdir /sys/fs/cgroup/bob /sys/fs/cgroup/charlie /sys/fs/cgroup/alice 2>/dev/null
	sysctl -qw net.netfilter.nf_log_all_netns=0
}
trap cleanup EXIT
# As a login manager does: users have cgroups.
mkdir -p /sys/fs/cgroup/{alice,bob,charlie}
sysctl -qw net.netfilter.nf_log_all_netns=1

in_host nft -f - <<'EOF'
table inet ports {
	chain out {
		type filter hook output priority 0
		udp sport 5432 meta skuid != bob log prefix "port 5432: " flags skuid drop
		udp sport 3306 meta skuid != charlie log prefix "port 3306: " flags skuid drop
		udp dport 5432 meta skuid != bob log prefix "to 5432: " flags skuid drop
	}
	chain in {
		type filter hook input priority 0
		udp dport 5432 socket cgroupv2 level 1 != "bob" log prefix "for 5432: " drop
		udp dport 3306 socket cgroupv2 level 1 != "charlie" log prefix "for 3306: " drop
	}
}
EOF
typed "nft add rule inet ports out udp sport 5432 meta skuid != bob log flags skuid drop"
typed "nft add rule inet ports in udp dport 5432 socket cgroupv2 level 1 != bob log drop"

# Starts an echo server: serve USER PORT.
serve() {
	in_group "$1" "$1" kopi-echo --bind "192.0.2.1:$2" >"/tmp/$1.$2" 2>&1 &
	wait_for grep -q listening "/tmp/$1.$2"
}
# Ends a user's server.
end() {
	pkill -u "$1" kopi-echo
	wait_for eval "! pgrep -u $1 kopi-echo"
}
logged() { dmesg | grep -a "$1"; }
dmesg --clear

serve bob 5432
serve charlie 3306
tell "bob serves 5432 and charlie 3306: $(ask 5432 hello), $(ask 3306 hello)"
check "bob may use 5432" echoes 5432 hello
check "charlie may use 3306" echoes 3306 hello
check "and nothing is logged" eval '! logged "port 5432\|for 5432\|for 3306"'
end bob

tell "Now alice takes port 5432 with a program of hers:"
serve alice 5432
check "what comes for the port doesn't reach alice" [ -z "$(ask 5432 hello 1)" ]
check "and the log says so" wait_for logged "for 5432: .*DPT=5432"
typed "dmesg"
logged "for 5432" | tail -1 | sed 's/^\[[^]]*\] //; s/MAC=[^ ]* //' | cut -c1-110 | shown
end alice
in_group alice alice kopi-nc -w 0.2 -p 5432 192.0.2.2 9999 <<<stolen >/tmp/nc.out 2>&1
check "what alice sends from the port is stopped, and she is told" grep -qi 'not permitted' /tmp/nc.out
check "and the log names her" wait_for logged "port 5432: .*UID=1001"
logged "port 5432" | tail -1 | sed 's/^\[[^]]*\] //; s/MAC=[^ ]* //' | cut -c1-160 | shown
in_group alice alice kopi-nc -w 0.2 192.0.2.2 5432 <<<hello >/tmp/nc.out 2>&1
check "nor may she talk to another machine's" grep -qi 'not permitted' /tmp/nc.out
in_group bob bob kopi-nc -w 0.2 192.0.2.2 5432 <<<hello >/tmp/nc.out 2>&1
check "bob may" eval '! grep -qi "not permitted" /tmp/nc.out'
check "charlie still has his port" echoes 3306 hello
tell "charlie goes on: $(ask 3306 hello)"
finish
