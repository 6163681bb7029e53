#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# Packets per second, of one sender and of two: for the machine of `qemu/vm --nic void --nic joined
# --nic tap`, without --icount, of which the last may be missing. Prints as rows.sh does.

. "$(dirname "$0")/lib.sh"
set_up
# For `kopi_engine`, whose senders begin with the first CPU.
kopictl engine set --cpus 1 >&2
in_void kopi-bench wall --nic void0 --local 198.18.0.0 \
	--modes sendmmsg,io_uring,udp_segment,af_packet,kopi_doorbell,kopi_engine,kopi_gso_descs,kopi_gso
# A queue for each CPU; of GSO packets this NIC would count one packet.
if ip -n tap link show tap0 >/dev/null 2>&1; then
	nsenter --net=/run/netns/tap kopi-bench wall --nic tap0 --local 198.18.0.0 --queues 2 \
		--modes sendmmsg,io_uring,af_packet,kopi_doorbell,kopi_engine
fi
