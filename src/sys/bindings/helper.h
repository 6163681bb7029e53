/* SPDX-License-Identifier: GPL-2.0 */
/* The input of bindgen, which makes generated.rs from it. */

#include <linux/bvec.h>
#include <linux/cgroup.h>
#include <linux/cred.h>
#include <linux/errqueue.h>
#include <linux/fs.h>
#include <linux/gfp.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/namei.h>
#include <linux/net.h>
#include <linux/netdevice.h>
#include <linux/pid.h>
#include <linux/poll.h>
#include <linux/rcupdate.h>
#include <linux/rtnetlink.h>
#include <linux/sched/user.h>
#include <linux/skbuff.h>
#include <linux/socket.h>
#include <linux/sockptr.h>
#include <linux/sysctl.h>
#include <linux/uio.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <net/dropreason.h>
#include <net/genetlink.h>
#include <net/inet_sock.h>
#include <net/ip.h>
#include <net/ipv6.h>
#include <net/net_namespace.h>
#include <net/route.h>
#include <net/sock.h>
#include <net/tcp.h>
#include <net/udp.h>
#include <net/xdp.h>
#include <uapi/linux/tcp.h>
#include <kopi.h>
#include <kopi_netlink.h>

#include "../../shim.h"

/* Macros that bindgen can't evaluate. */
static const u32 KOPI_CONST_EPOLLIN = (__force u32)(EPOLLIN | EPOLLRDNORM);
static const u32 KOPI_CONST_EPOLLOUT = (__force u32)(EPOLLOUT | EPOLLWRNORM);
static const u32 KOPI_CONST_EPOLLERR = (__force u32)EPOLLERR;
static const u32 KOPI_CONST_EPOLLWRBAND = (__force u32)EPOLLWRBAND;
static const u32 KOPI_CONST_ITER_DEST = ITER_DEST;
static const u32 KOPI_CONST_ITER_SOURCE = ITER_SOURCE;
static const u32 KOPI_CONST_AF_UNSPEC = AF_UNSPEC;
static const u64 KOPI_CONST_VM_SHARED = VM_SHARED;
static const u64 KOPI_CONST_VM_EXEC = VM_EXEC;
static const u64 KOPI_CONST_VM_MAYEXEC = VM_MAYEXEC;
static const u64 KOPI_CONST_VM_DONTCOPY = VM_DONTCOPY;
static const u64 KOPI_CONST_VM_DONTEXPAND = VM_DONTEXPAND;
static const u64 KOPI_CONST_VM_MAP = VM_MAP;
static const u32 KOPI_CONST_PAGE_SIZE = PAGE_SIZE;
static const u32 KOPI_CONST_SKB_SHARED_INFO_SIZE =
	SKB_DATA_ALIGN(sizeof(struct skb_shared_info));
static const u32 KOPI_CONST_MAX_SKB_FRAGS = MAX_SKB_FRAGS;
static const u32 KOPI_CONST_FOLL_WRITE = FOLL_WRITE;
static const u32 KOPI_CONST_FOLL_LONGTERM = FOLL_LONGTERM;
static const u32 KOPI_CONST_LOOKUP_CACHED = LOOKUP_CACHED;
static const u32 KOPI_CONST_LOOKUP_FOLLOW = LOOKUP_FOLLOW;
static const u32 KOPI_CONST_GFP_KERNEL = (__force u32)GFP_KERNEL;
static const u32 KOPI_CONST_GFP_ATOMIC = (__force u32)GFP_ATOMIC;
