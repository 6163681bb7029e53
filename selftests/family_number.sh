#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The module's number: the parameter moves it, one that is taken is refused, and
# it is busy while a socket lives. What looks at the module goes on with another.

. "$(dirname "$0")/lib.sh"

module=$here/../build/$(uname -r)/kopi.ko
opens() { python3 -c "import socket; socket.socket($1, socket.SOCK_DGRAM, 0)" 2>/dev/null; }

nsenter --net=/run/netns/host kopictl watch --json >/tmp/watched 2>/tmp/watched.err &
watcher=$!
nsenter --net=/run/netns/host kopictl metrics --listen /run/metrics.sock 2>/tmp/metrics.err &
metrics=$!
trap 'kill $watcher $metrics 2>/dev/null' EXIT
wait_for grep -q listening /tmp/metrics.err
flows() { curl -s --unix-socket /run/metrics.sock http://localhost/metrics | grep -q '^kopi_flows '; }
check "metrics are served" flows
hears() { in_host kopi-nc -w 0 192.0.2.2 9 </dev/null 2>/dev/null; grep -q flow-opened /tmp/watched; }
check "and flows heard of" wait_for hears

python3 -c 'import socket, sys
s = socket.socket(19, socket.SOCK_DGRAM, 0)
print("open", flush=True)
sys.stdin.read()' < <(sleep 600) >/tmp/holder.out &
holder=$!
wait_for grep -q open /tmp/holder.out
check "rmmod is busy while a socket lives" eval '! rmmod kopi 2>/dev/null'
kill $holder
wait $holder 2>/dev/null
check "rmmod works after it" wait_for rmmod kopi
check "without the module there is no family" eval '! opens 19'
check "which who watches is told" wait_for grep -q '^KOPI was unloaded' /tmp/watched.err
check "and who asks for metrics" wait_for eval '! flows'

check "no alias, by which any user's socket or device would have it loaded" [ -z "$(modinfo -F alias "$module")" ]
check "insmod family=21" insmod "$module" family=21
check "sockets of family 21" opens 21
check "none of 19" eval '! opens 19'
check "who watches is told of it" wait_for grep -q '^KOPI is loaded again' /tmp/watched.err
: >/tmp/watched
check "and hears of flows again" wait_for hears
check "and metrics are served again" wait_for flows
check "the number is in sysfs" [ "$(cat /sys/module/kopi/parameters/family)" = 21 ]
wait_for rmmod kopi

# The family says EEXIST, which the kernel keeps for a module that is loaded already:
# finit_module() makes it EBUSY.
taken() { strace -e trace=finit_module insmod "$module" family=2 2>&1 | grep -q EBUSY; }
check "a number that is taken is refused: EBUSY" taken
check "and the log says so" eval "dmesg | grep -q 'address family 2 is taken'"
none() { strace -e trace=finit_module insmod "$module" family=99 2>&1 | grep -q EINVAL; }
check "a number that is none is refused: EINVAL" none
check "insmod as ever" insmod "$module"
finish
