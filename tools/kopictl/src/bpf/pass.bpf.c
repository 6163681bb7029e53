// SPDX-License-Identifier: GPL-2.0
/*
 * Passes all packets on. It is there since drivers send frames for others only while they
 * have a program of their own.
 */

#include <linux/bpf.h>

__attribute__((section("xdp"), used)) int kopi_pass(struct xdp_md *packet)
{
	return XDP_PASS;
}

char LICENSE[] __attribute__((section("license"), used)) = "GPL";
