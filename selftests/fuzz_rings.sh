#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# A hostile process writes at random over all that it shares with the kernel, and a
# neighbour's traffic stays whole. FUZZ_SECONDS and FUZZ_SEED change the run.

. "$(dirname "$0")/lib.sh"

seconds=${FUZZ_SECONDS:-10}
seed=${FUZZ_SEED:-$(date +%s)}
log=/tmp/fuzz
rm -rf $log && mkdir -m 777 $log
available() { sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo; }
module_users() { grep ^kopi /proc/modules | cut -d' ' -f3; }
unused() { [ "$(module_users)" = 0 ]; }

# One after another, as long as the other one works; each says what is missing or wrong.
neighbour() {
	while [ -e $log/running ]; do
		rm -f $log/recv.out
		as alice kopi-gen recv --bind 127.0.0.1:9100 --count 2000 >$log/recv.out 2>&1 &
		wait_for [ -s $log/recv.out ] || return
		as alice kopi-gen send 127.0.0.1:9100 --count 2000 --size 0..9000 >$log/send.out 2>&1 || return
		wait $! || return
		echo . >>$log/passed
	done
}

run=(--seed "$seed" --seconds "$seconds")
hostile=(as bob)
if [ -e /sys/kernel/debug/kcov ]; then
	# Which only root may have.
	run+=(--coverage "$log/reached")
	hostile=()
fi
before=$(available)
touch $log/running
neighbour &
neighbour=$!
echo "# kopi-fuzz rings ${run[*]}"
# For half of the channels, and for so short a time that they come and go.
kopictl engine set --cpus "$(cat /sys/devices/system/cpu/online)" --idle 100 --budget 4096
"${hostile[@]}" timeout -k 5 $((seconds + 60)) kopi-fuzz rings "${run[@]}" >$log/fuzz.out 2>&1
status=$?
sed 's/^/# /' $log/fuzz.out
check "seed $seed: the hostile process ends by itself" [ $status = 0 ]
rm $log/running
wait $neighbour
intact=$?
check "seed $seed: all of its neighbour's datagrams arrive intact" [ $intact = 0 ]
check "of which there were some" [ -s $log/passed ]
echo "# $(wc -l <$log/passed) times 2000 datagrams"
[ $intact = 0 ] || tail -3 $log/send.out $log/recv.out
visits=$(kopictl engine | awk 'NR > 1 { sum += $5 } END { print sum + 0 }')
check "engines sent, too" [ "$visits" -gt 0 ]
echo "# $visits visits"
kopictl engine off
check "nothing holds the module" wait_for unused
# The kernel keeps some in lists of each CPU; each round has a region of up to four megabytes.
memory_is_back() { [ $((before - $(available))) -lt 32768 ]; }
check "memory is back" wait_for memory_is_back
if [ -e $log/reached ]; then
	"$here/reached.py" "$here/../build/$(uname -r)/kopi.ko" $log/reached
fi
finish
