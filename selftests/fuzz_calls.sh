#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Threads of a hostile process call what sockets have, in any order and on the same
# few descriptors and mappings. FUZZ_SECONDS and FUZZ_SEED change the run.

. "$(dirname "$0")/lib.sh"

seconds=${FUZZ_SECONDS:-10}
seed=${FUZZ_SEED:-$(date +%s)}

before=$(available)
run=(--seed "$seed" --seconds "$seconds")
echo "# kopi-fuzz calls ${run[*]}"
as bob timeout -k 5 $((seconds + 60)) kopi-fuzz calls "${run[@]}" >/tmp/calls.out 2>&1
status=$?
sed 's/^/# /' /tmp/calls.out
check "seed $seed: the process ends by itself" [ $status = 0 ]
check "nothing holds the module" wait_for unused
memory_is_back() { [ $((before - $(available))) -lt 16384 ]; }
check "memory is back" wait_for memory_is_back
check "a flow still works" bash -c 'kopi-echo --bind 127.0.0.1:9101 >/tmp/echo.out &
	until grep -q listening /tmp/echo.out; do sleep 0.05; done
	echo hello | kopi-nc -n 1 -w 5 127.0.0.1 9101 | grep -q hello; status=$?; kill %1; exit $status'
finish
