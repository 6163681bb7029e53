#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# What packages run before they are removed: programs of attached NICs are taken away in each network namespace,
# however many devices users have made in others.

. "$(dirname "$0")/lib.sh"

has_program() { ip netns exec host ip link show eth0 | grep -q prog/xdp; }
clean() { umount /usr/bin/kopictl 2>/dev/null; [ -s /usr/bin/kopictl ] || rm -f /usr/bin/kopictl; ip netns del many 2>/dev/null; }
trap clean EXIT

# In the place of the packaged one: one that is counted, by namespace.
[ -e /usr/bin/kopictl ] || touch /usr/bin/kopictl
cat >/tmp/counted <<END
#!/bin/sh
stat -Lc %i /proc/self/ns/net >>/tmp/calls
exec $(command -v kopictl) "\$@"
END
chmod 755 /tmp/counted
mount --bind /tmp/counted /usr/bin/kopictl
ip netns add many
for number in $(seq 300); do echo "link add dummy$number type dummy"; done >/tmp/links
ip -n many -batch /tmp/links

check "a NIC is attached" eval 'in_host kopictl attach eth0 && has_program'
check "in a container nothing is taken back" eval 'unshare --pid --fork --mount-proc "$here/../packaging/take-back" && has_program'
check "it is taken back" "$here/../packaging/take-back"
check "the NIC has no program" eval '! has_program'
calls=$(grep -cx "$(stat -Lc %i /run/netns/many)" /tmp/calls)
check "another namespace is asked, and not about each of its devices" eval '[ "$calls" -ge 1 ] && [ "$calls" -lt 10 ]'
echo "# $calls calls in a namespace with 300 devices"
finish
