#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The kernel's packetdrill scripts give the same verdicts with plain TCP sockets and by `kopi run --tcp`, by IPv4,
# by IPv6, and by IPv4's addresses on IPv6 sockets (or by $VERSIONS of these): packetdrill.sh [PATTERN]
#
# By hand, since Debian has no packetdrill: $PACKETDRILL is one that was built from its source. Timing counts, so
# the machine is one whose clock counts instructions:
#     qemu/vm --icount --timeout 3600 -- env PACKETDRILL=/kopi/build/packetdrill selftests/rigs/packetdrill.sh

. "$(dirname "$0")/../lib.sh"

scripts=$here/../build/rigs/net/packetdrill
[ -x "${PACKETDRILL:-}" ] || { echo "1..0 # SKIP PACKETDRILL doesn't name a packetdrill" && exit 4; }
[ -d "$scripts" ] || { echo "1..0 # SKIP no build/rigs: run qemu/build rigs" && exit 4; }
# Scripts call others beside them, and packetdrill itself.
rm -rf /tmp/packetdrill && cp -r "$scripts" /tmp/packetdrill && cd /tmp/packetdrill || exit
install -D "$PACKETDRILL" /tmp/packetdrill/bin/packetdrill
# By which packetdrill sets an MTU, with the same words as ip(8).
printf '#!/bin/sh\nexec ip link set "$@"\n' >/tmp/packetdrill/bin/ifconfig
chmod +x /tmp/packetdrill/bin/ifconfig
PATH=/tmp/packetdrill/bin:$PATH
modprobe tun
# The options of each version: `ip_args`.
eval "$(sed -n '/^declare -A ip_args/,/^)/p' ksft_runner.sh)"

# one SCRIPT VERSION COMMAND...: runs it, by a command that starts programs, or by itself.
one() {
	# shellcheck disable=SC2086,SC2154 # Several options, of the file above.
	timeout 60 "${@:3}" unshare -n packetdrill ${ip_args[$2]} --tolerance_usecs=14000 "$1" >/tmp/packetdrill.out 2>&1
	echo $?
}
both() {
	plain=$(one "$1" "$2")
	flows=$(one "$1" "$2" kopi run --tcp --explain)
	grep -q 'a TCP flow' /tmp/packetdrill.out || flows+=', without a flow'
}
passed=0
for script in *${1:-}*.pkt; do
	versions=$(sed -n 's/^--ip_version=//p' "$script")
	for version in ${versions:-${VERSIONS:-${!ip_args[*]}}}; do
		both "$script" "$version"
		# Once more, if the clock was against one.
		[ "$plain" = "$flows" ] || both "$script" "$version"
		[ "$plain" != 0 ] || passed=$((passed + 1))
		check "$script, $version: the same with flows ($plain)" [ "$plain" = "$flows" ]
	done
done
check "most pass without KOPI ($passed of $tests)" [ $((passed * 10)) -ge $((tests * 9)) ]
finish
