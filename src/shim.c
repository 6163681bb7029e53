// SPDX-License-Identifier: GPL-2.0
/* See shim.h. No logic here: each function is the one it is named after. */

#include <linux/bottom_half.h>
#include <linux/bpf-cgroup.h>
#include <linux/capability.h>
#include <linux/cgroup.h>
#include <linux/cpumask.h>
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/if_arp.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/netfilter_ipv4.h>
#include <linux/netfilter_ipv6.h>
#include <linux/netfilter_netdev.h>
#include <linux/path.h>
#include <linux/pid_namespace.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/tracepoint.h>
#include <linux/uaccess.h>
#include <linux/udp.h>
#include <linux/unaligned.h>
#include <linux/wait.h>
#include <net/busy_poll.h>
#include <net/dsfield.h>
#include <net/genetlink.h>
#include <net/ip.h>
#include <net/ipv6.h>
#include <net/netns/generic.h>
#include <net/route.h>
#include <net/rps.h>
#include <net/rtnetlink.h>
#include <net/sch_generic.h>
#include <net/sock.h>
#include <net/udp.h>
#include <trace/events/skb.h>

#include "netlink/family.h"
#include "shim.h"

/* Rust modules can have no parameter that sysfs shows. */
static int family = 19;
module_param(family, int, 0444);
MODULE_PARM_DESC(family, "Number of the socket family (default: 19)");

static unsigned int copybreak = 2048;
module_param(copybreak, uint, 0644);
MODULE_PARM_DESC(copybreak,
		 "Longer payloads, in bytes, are sent by reference (default: 2048; 65536: none)");

unsigned int kopi_copybreak_parameter(void)
{
	return READ_ONCE(copybreak);
}

int kopi_family_parameter(void)
{
	return family;
}

void kopi_module_get(void)
{
	__module_get(THIS_MODULE);
}

void kopi_module_put(void)
{
	module_put(THIS_MODULE);
}

void kopi_sock_graft(struct sock *sk, struct socket *parent)
{
	sock_graft(sk, parent);
}

bool kopi_sock_get(struct sock *sk)
{
	return refcount_inc_not_zero(&sk->sk_refcnt);
}

void kopi_sock_put(struct sock *sk)
{
	sock_put(sk);
}

u64 kopi_net_cookie(const struct net *net)
{
	return net->net_cookie;
}

struct net *kopi_sock_net(const struct sock *sk)
{
	return sock_net(sk);
}

struct user_namespace *kopi_net_user_ns(struct net *net)
{
	return net->user_ns;
}

uid_t kopi_sk_uid(const struct sock *sk)
{
	return __kuid_val(sk_uid(sk));
}

/* The inode of the sock's socket, if it still has one; freed by RCU. */
void *kopi_sk_inode_private(const struct sock *sk)
{
	struct socket *socket = READ_ONCE(sk->sk_socket);

	/* Pairs with the store below: what it points to is initialised. */
	return socket ? smp_load_acquire(&SOCK_INODE(socket)->i_private) : NULL;
}

void kopi_set_sk_inode_private(struct sock *sk, void *data)
{
	/* Pairs with the load above. */
	smp_store_release(&SOCK_INODE(sk->sk_socket)->i_private, data);
}

bool kopi_sock_writeable(const struct sock *sk)
{
	return sock_writeable(sk);
}

int kopi_sock_error(struct sock *sk)
{
	return sock_error(sk);
}

bool kopi_sock_flag_rcvtstamp(const struct sock *sk)
{
	return sock_flag(sk, SOCK_RCVTSTAMP);
}

bool kopi_sock_flag_rcvmark(const struct sock *sk)
{
	return sock_flag(sk, SOCK_RCVMARK);
}

long kopi_sock_rcvtimeo(const struct sock *sk, bool noblock)
{
	return sock_rcvtimeo(sk, noblock);
}

int kopi_sock_intr_errno(long timeo)
{
	return sock_intr_errno(timeo);
}

bool kopi_sk_can_busy_loop(const struct sock *sk)
{
	return sk_can_busy_loop(sk);
}

/* With an end of its own: sk_busy_loop() looks at the sock's queue, where nothing stays. */
void kopi_sk_busy_loop(struct sock *sk, bool (*loop_end)(void *, unsigned long), void *arg)
{
	unsigned int napi_id = READ_ONCE(sk->sk_napi_id);

	if (napi_id_valid(napi_id))
		napi_busy_loop(napi_id, loop_end, arg, READ_ONCE(sk->sk_prefer_busy_poll),
			       READ_ONCE(sk->sk_busy_poll_budget) ?: BUSY_POLL_BUDGET);
}

bool kopi_sk_busy_loop_timeout(struct sock *sk, unsigned long start_time)
{
	return sk_busy_loop_timeout(sk, start_time);
}

wait_queue_head_t *kopi_sk_sleep(struct sock *sk)
{
	return sk_sleep(sk);
}

void kopi_sk_wake_async(struct sock *sk)
{
	sk_wake_async(sk, SOCK_WAKE_WAITD, POLL_IN);
}

bool kopi_udp_queues_empty(struct sock *sk)
{
	return skb_queue_empty_lockless(&sk->sk_receive_queue) &&
	       skb_queue_empty_lockless(&udp_sk(sk)->reader_queue);
}

void kopi_udp_count_received(struct sock *sk, const struct sk_buff *skb)
{
	SNMP_INC_STATS(__UDPX_MIB(sk, skb->protocol == htons(ETH_P_IP)),
		       UDP_MIB_INDATAGRAMS);
}

void kopi_udp_count_dropped(struct sock *sk, const struct sk_buff *skb, int datagrams)
{
	struct udp_mib __percpu *mib = __UDPX_MIB(sk, skb->protocol == htons(ETH_P_IP));

	SNMP_ADD_STATS(mib, UDP_MIB_RCVBUFERRORS, datagrams);
	SNMP_ADD_STATS(mib, UDP_MIB_INERRORS, datagrams);
	numa_drop_add(&udp_sk(sk)->drop_counters, datagrams);
}

bool kopi_udp4_recvmsg_hooked(struct sock *sk)
{
	return cgroup_bpf_enabled(CGROUP_UDP4_RECVMSG) &&
	       cgroup_bpf_sock_enabled(sk, CGROUP_UDP4_RECVMSG);
}

bool kopi_udp6_recvmsg_hooked(struct sock *sk)
{
	return cgroup_bpf_enabled(CGROUP_UDP6_RECVMSG) &&
	       cgroup_bpf_sock_enabled(sk, CGROUP_UDP6_RECVMSG);
}

int kopi_run_udp4_recvmsg(struct sock *sk, void *addr, int *len)
{
	return BPF_CGROUP_RUN_SA_PROG(sk, addr, len, CGROUP_UDP4_RECVMSG);
}

int kopi_run_udp6_recvmsg(struct sock *sk, void *addr, int *len)
{
	return BPF_CGROUP_RUN_SA_PROG(sk, addr, len, CGROUP_UDP6_RECVMSG);
}

/*
 * As __skb_recv_udp() of 7.3.4 with MSG_DONTWAIT, but for two things. It never busy polls:
 * NAPI, run under the caller's lock, would deliver to the caller again. And it leaves an
 * error of the sock's where it is. Memory goes back as by udp_rmem_release(), which calls
 * what isn't exported; sk_mem_uncharge() does the same.
 */
static struct sk_buff *udp_dequeue(struct sock *sk)
{
	struct sk_buff_head *queue = &udp_sk(sk)->reader_queue;
	struct sk_buff_head *sk_queue = &sk->sk_receive_queue;
	struct sk_buff *skb;

	spin_lock_bh(&queue->lock);
	spin_lock(&sk_queue->lock);
	skb_queue_splice_tail_init(sk_queue, queue);
	skb = __skb_dequeue(queue);
	if (skb) {
		int size = skb->truesize + udp_sk(sk)->forward_deficit;

		udp_sk(sk)->forward_deficit = 0;
		sk_mem_uncharge(sk, size);
		atomic_sub(size, &sk->sk_rmem_alloc);
	}
	spin_unlock(&sk_queue->lock);
	spin_unlock_bh(&queue->lock);
	return skb;
}

/*
 * As udp_read_skb() of 7.3.4, which polls the NIC when it has dropped bad checksums. Looks at
 * *left packets at the most, and takes off those that it looked at.
 */
struct sk_buff *kopi_udp_read_skb(struct sock *sk, u32 *left)
{
	struct sk_buff *skb = NULL;

	while (*left) {
		--*left;
		skb = udp_dequeue(sk);
		if (!skb || !udp_lib_checksum_complete(skb))
			break;
		__UDPX_INC_STATS(sk, UDP_MIB_CSUMERRORS);
		__UDPX_INC_STATS(sk, UDP_MIB_INERRORS);
		udp_drops_inc(sk);
		kfree_skb_reason(skb, SKB_DROP_REASON_UDP_CSUM);
		skb = NULL;
	}
	if (skb) {
		WARN_ON_ONCE(!skb_set_owner_sk_safe(skb, sk));
		/* It was UDP's dev_scratch. */
		skb->dev = NULL;
	}
	return skb;
}

void kopi_write_lock_bh_callback(struct sock *sk)
{
	write_lock_bh(&sk->sk_callback_lock);
}

void kopi_write_unlock_bh_callback(struct sock *sk)
{
	write_unlock_bh(&sk->sk_callback_lock);
}

bool kopi_skb_is_ipv4(const struct sk_buff *skb)
{
	return skb->protocol == htons(ETH_P_IP);
}

int kopi_skb_iif(const struct sk_buff *skb)
{
	return skb->skb_iif;
}

int kopi_ip6cb_iif(const struct sk_buff *skb)
{
	return IP6CB(skb)->iif;
}

int kopi_pktinfo_cb_ifindex(const struct sk_buff *skb)
{
	return PKTINFO_SKB_CB(skb)->ipi_ifindex;
}

u32 kopi_skb_mark(const struct sk_buff *skb)
{
	return skb->mark;
}

const struct iphdr *kopi_ip_hdr(const struct sk_buff *skb)
{
	return ip_hdr(skb);
}

const struct ipv6hdr *kopi_ipv6_hdr(const struct sk_buff *skb)
{
	return ipv6_hdr(skb);
}

const struct udphdr *kopi_udp_hdr(const struct sk_buff *skb)
{
	return udp_hdr(skb);
}

unsigned int kopi_skb_gso_size(const struct sk_buff *skb)
{
	/* What has another type is one datagram, which would be cut into fragments. */
	return skb_shinfo(skb)->gso_type & SKB_GSO_UDP_L4 ? skb_shinfo(skb)->gso_size : 0;
}

u8 kopi_ipv6_get_dsfield(const struct ipv6hdr *ip6h)
{
	return ipv6_get_dsfield(ip6h);
}

u64 kopi_skb_timestamp_ns(struct sk_buff *skb)
{
	return ktime_to_ns(skb->tstamp ? skb->tstamp : ktime_get_real());
}

bool kopi_inet_has_options(const struct sock *sk)
{
	return rcu_access_pointer(inet_sk(sk)->inet_opt);
}

/* As lock_sock(), if it needn't wait. */
static bool try_lock_sock(struct sock *sk)
{
	bool got;

	spin_lock_bh(&sk->sk_lock.slock);
	got = !sk->sk_lock.owned;
	if (got)
		sk->sk_lock.owned = 1;
	spin_unlock_bh(&sk->sk_lock.slock);
	if (got)
		mutex_acquire(&sk->sk_lock.dep_map, 0, 1, _RET_IP_);
	return got;
}

/*
 * As inet_sendmsg() of 7.3.4, whose inet_autobind() waits for the sock's lock: EAGAIN if
 * that is somebody's.
 */
int kopi_udp_sendmsg(struct sock *sk, struct msghdr *msg, size_t len)
{
	struct inet_sock *inet = inet_sk(sk);

	sock_rps_record_flow(sk);
	/* Looked at again under the lock. */
	if (!READ_ONCE(inet->inet_num)) {
		if (!try_lock_sock(sk))
			return -EAGAIN;
		if (!inet->inet_num) {
			if (sk->sk_prot->get_port(sk, 0)) {
				release_sock(sk);
				return -EAGAIN;
			}
			inet->inet_sport = htons(inet->inet_num);
		}
		release_sock(sk);
	}
	return sk->sk_prot->sendmsg(sk, msg, len);
}

/* Whether there are BPF programs, anywhere, before which udp_sendmsg() locks the sock. */
bool kopi_has_sendmsg_hooks(void)
{
	return cgroup_bpf_enabled(CGROUP_UDP4_SENDMSG) || cgroup_bpf_enabled(CGROUP_UDP6_SENDMSG);
}

bool kopi_udp_is_corked(const struct sock *sk)
{
	return udp_test_bit(CORK, sk) || READ_ONCE(udp_sk(sk)->pending);
}

u16 kopi_udp_gso_size(const struct sock *sk)
{
	return READ_ONCE(udp_sk(sk)->gso_size);
}

bool kopi_sk_no_check_tx(const struct sock *sk)
{
	return sk->sk_no_check_tx;
}

bool kopi_sock_flag_txtime(const struct sock *sk)
{
	return sock_flag(sk, SOCK_TXTIME);
}

bool kopi_sock_flag_localroute(const struct sock *sk)
{
	return sock_flag(sk, SOCK_LOCALROUTE);
}

/* Whether it has a policy of IPsec of its own. */
bool kopi_sk_has_policy_out(const struct sock *sk)
{
	return rcu_access_pointer(sk->sk_policy[XFRM_POLICY_OUT]);
}

u8 kopi_inet_sk_flowi_flags(const struct sock *sk)
{
	return inet_sk_flowi_flags(sk);
}

bool kopi_cgroup_bpf_enabled_udp4_sendmsg(void)
{
	return cgroup_bpf_enabled(CGROUP_UDP4_SENDMSG);
}

void kopi_sock_rps_record_flow(const struct sock *sk)
{
	sock_rps_record_flow(sk);
}

void kopi_flowi4_init_output(struct flowi4 *fl4, int oif, u32 mark, u8 tos, u8 flags,
			     __be32 daddr, __be32 saddr, __be16 dport, __be16 sport,
			     const struct sock *sk)
{
	flowi4_init_output(fl4, oif, mark, tos & INET_DSCP_MASK, RT_SCOPE_UNIVERSE,
			   IPPROTO_UDP, flags, daddr, saddr, dport, sport, sk_uid(sk));
}

bool kopi_dst_check(struct dst_entry *dst)
{
	return dst_check(dst, 0);
}

u32 kopi_dst4_mtu(const struct dst_entry *dst)
{
	return dst4_mtu(dst);
}

bool kopi_dst_is_transformed(const struct dst_entry *dst)
{
	return dst_xfrm(dst) || dst->header_len || dst->trailer_len || dst->lwtstate;
}

unsigned int kopi_ll_reserved_space(const struct dst_entry *dst)
{
	return LL_RESERVED_SPACE(dst_dev(dst));
}

bool kopi_dst_has_checksums(const struct dst_entry *dst)
{
	return dst_dev(dst)->features & (NETIF_F_HW_CSUM | NETIF_F_IP_CSUM);
}

u32 kopi_rt_flags(const struct dst_entry *dst)
{
	return dst_rtable(dst)->rt_flags;
}

u32 kopi_dst_hoplimit(const struct dst_entry *dst)
{
	return dst_metric_raw(dst, RTAX_HOPLIMIT);
}

bool kopi_dst_has_queues(const struct dst_entry *dst)
{
	return READ_ONCE(dst_dev(dst)->real_num_tx_queues) > 1;
}

u8 kopi_sk_default_ttl(const struct sock *sk)
{
	return READ_ONCE(sock_net(sk)->ipv4.sysctl_ip_default_ttl);
}

bool kopi_dst_mtu_locked(const struct dst_entry *dst)
{
	return dst_metric_locked(dst, RTAX_MTU);
}

void kopi_ip_select_ident(struct sk_buff *skb, struct sock *sk)
{
	ip_select_ident(sock_net(sk), skb, sk);
}

/* Opens len bytes behind the headroom, which begin with the network header. */
void *kopi_skb_begin(struct sk_buff *skb, unsigned int headroom, unsigned int len,
		     int transport, u32 mark)
{
	skb_reserve(skb, headroom);
	skb_reset_network_header(skb);
	skb_set_transport_header(skb, transport);
	skb->mark = mark;
	return __skb_put(skb, len);
}

/* The hash of an IPv4 datagram's ends, which is computed if it isn't known. */
u32 kopi_skb_flow_hash(struct sk_buff *skb, u32 known)
{
	skb->protocol = htons(ETH_P_IP);
	if (known)
		__skb_set_sw_hash(skb, known, true);
	return skb_get_hash(skb);
}

void kopi_memcpy(void *to, const void *from, size_t len)
{
	memcpy(to, from, len);
}

u32 kopi_csum_partial_copy_nocheck(const void *from, void *to, int len)
{
	return (__force u32)csum_partial_copy_nocheck(from, to, len);
}

void kopi_skb_dst_set_noref(struct sk_buff *skb, struct dst_entry *dst)
{
	skb_dst_set_noref(skb, dst);
}

int kopi_net_xmit_errno(int code)
{
	return net_xmit_errno(code);
}

void kopi_ip_inc_stats(struct sock *sk, int field)
{
	IP_INC_STATS(sock_net(sk), field);
}

void kopi_udp_inc_stats(struct sock *sk, int field)
{
	SNMP_INC_STATS(sock_net(sk)->mib.udp_statistics, field);
}

bool kopi_sock_is_nospace(const struct sock *sk)
{
	return test_bit(SOCK_NOSPACE, &sk->sk_socket->flags);
}

bool kopi_inet_recverr(const struct sock *sk)
{
	return inet_test_bit(RECVERR, sk);
}

struct page *kopi_alloc_page(void)
{
	return alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN |
			  __GFP_RETRY_MAYFAIL);
}

pgprot_t kopi_page_kernel(void)
{
	return PAGE_KERNEL;
}

struct user_struct *kopi_get_current_user(void)
{
	return get_uid(current_user());
}

long kopi_user_locked_vm_read(struct user_struct *user)
{
	return atomic_long_read(&user->locked_vm);
}

bool kopi_user_locked_vm_try_cmpxchg(struct user_struct *user, long old, long new)
{
	return atomic_long_try_cmpxchg(&user->locked_vm, &old, new);
}

void kopi_user_locked_vm_sub(struct user_struct *user, long pages)
{
	atomic_long_sub(pages, &user->locked_vm);
}

unsigned long kopi_rlimit_memlock(void)
{
	return rlimit(RLIMIT_MEMLOCK);
}

void kopi_vm_flags_set_clear(struct vm_area_struct *vma, unsigned long set,
			     unsigned long clear)
{
	vm_flags_mod(vma, set, clear);
}

int kopi_copy_struct_from_sockptr(void *to, size_t ksize, sockptr_t from, size_t usize)
{
	return copy_struct_from_sockptr(to, ksize, from, usize);
}

unsigned long kopi_copy_to_user(void __user *to, const void *from, unsigned long size)
{
	return copy_to_user(to, from, size);
}

unsigned long kopi_copy_from_user(void *to, const void __user *from, unsigned long size)
{
	return copy_from_user(to, from, size);
}

void kopi_local_bh_disable(void)
{
	local_bh_disable();
}

void kopi_local_bh_enable(void)
{
	local_bh_enable();
}

unsigned long kopi_local_irq_save(void)
{
	unsigned long flags;

	local_irq_save(flags);
	return flags;
}

void kopi_local_irq_restore(unsigned long flags)
{
	local_irq_restore(flags);
}

void kopi_cond_resched(void)
{
	cond_resched();
}

void kopi_cond_resched_tasks_rcu_qs(void)
{
	cond_resched_tasks_rcu_qs();
}

bool kopi_cpu_online(unsigned int cpu)
{
	return cpu < nr_cpu_ids && cpu_online(cpu);
}

uid_t kopi_current_uid(void)
{
	return from_kuid(&init_user_ns, current_uid());
}

uid_t kopi_charged_uid(void)
{
	struct user_namespace *outermost = NULL, *ns;
	kuid_t uid = current_uid();

	for (ns = current_user_ns(); ns != &init_user_ns; ns = ns->parent)
		outermost = ns;
	if (outermost) {
		/* Root makes them for others, and gives each its own users. */
		kuid_t owner = uid_eq(outermost->owner, GLOBAL_ROOT_UID) ?
			make_kuid(outermost, 0) : outermost->owner;

		if (uid_valid(owner))
			uid = owner;
	}
	return from_kuid(&init_user_ns, uid);
}

u64 kopi_ktime_get_ns(void)
{
	return ktime_get_ns();
}

bool kopi_signal_pending(void)
{
	return signal_pending(current);
}

void kopi_poll_wait(struct file *file, wait_queue_head_t *queue, poll_table *table)
{
	poll_wait(file, queue, table);
}

bool kopi_wq_has_sleeper(wait_queue_head_t *queue)
{
	return wq_has_sleeper(queue);
}

void kopi_init_waitqueue_head(wait_queue_head_t *queue)
{
	init_waitqueue_head(queue);
}

void kopi_init_wait_entry_func(struct wait_queue_entry *entry, wait_queue_func_t func)
{
	init_waitqueue_func_entry(entry, func);
	INIT_LIST_HEAD(&entry->entry);
}

/* Under the queue's lock; who finds it on none need not take that. */
void kopi_wait_entry_leave(struct wait_queue_entry *entry)
{
	list_del_init_careful(&entry->entry);
}

struct workqueue_struct *kopi_alloc_workqueue(void)
{
	return alloc_workqueue("kopi", WQ_UNBOUND | WQ_MEM_RECLAIM, 0);
}

void kopi_init_delayed_work(struct delayed_work *work, work_func_t func)
{
	INIT_DELAYED_WORK(work, func);
}

void kopi_queue_delayed_work(struct workqueue_struct *queue,
			     struct delayed_work *work, unsigned long delay)
{
	queue_delayed_work(queue, work, delay);
}

/* Turns softirqs off, and says whether no process has locked the sock. */
bool kopi_bh_lock_sock_unowned(struct sock *sk)
{
	local_bh_disable();
	bh_lock_sock(sk);
	if (!sock_owned_by_user(sk))
		return true;
	bh_unlock_sock(sk);
	local_bh_enable();
	return false;
}

void kopi_bh_unlock_sock(struct sock *sk)
{
	bh_unlock_sock(sk);
	local_bh_enable();
}

bool kopi_ns_capable_net_admin(struct user_namespace *ns)
{
	return ns_capable(ns, CAP_NET_ADMIN);
}

void kopi_ubuf_init(struct ubuf_info *ubuf, const struct ubuf_info_ops *ops)
{
	refcount_set(&ubuf->refcnt, 1);
	ubuf->flags = SKBFL_ZEROCOPY_FRAG | SKBFL_DONT_ORPHAN;
	ubuf->ops = ops;
}

bool kopi_ubuf_put(struct ubuf_info *ubuf)
{
	return refcount_dec_and_test(&ubuf->refcnt);
}

__be32 kopi_sk_rcv_saddr(const struct sock *sk)
{
	return READ_ONCE(sk->sk_rcv_saddr);
}

__be32 kopi_sk_daddr(const struct sock *sk)
{
	return READ_ONCE(sk->sk_daddr);
}

const struct in6_addr *kopi_sk_v6_rcv_saddr(const struct sock *sk)
{
	return &sk->sk_v6_rcv_saddr;
}

const struct in6_addr *kopi_sk_v6_daddr(const struct sock *sk)
{
	return &sk->sk_v6_daddr;
}

__be16 kopi_sk_dport(const struct sock *sk)
{
	return READ_ONCE(sk->sk_dport);
}

int kopi_sk_bound_dev_if(const struct sock *sk)
{
	return READ_ONCE(sk->sk_bound_dev_if);
}

bool kopi_device_name(struct net *net, int ifindex, char *name)
{
	struct net_device *dev;

	guard(rcu)();
	dev = dev_get_by_index_rcu(net, ifindex);
	return dev && strscpy_pad(name, dev->name, IFNAMSIZ) > 0;
}

void kopi_sk_set_mark(struct sock *sk, u32 mark)
{
	WRITE_ONCE(sk->sk_mark, mark);
	sk_dst_reset(sk);
}

/*
 * Takes back what bind() did, which bind() itself doesn't do once it has succeeded: the port is others'
 * again, and the rest as it was.
 */
void kopi_sk_unbind(struct sock *sk, int device, bool ipv6only)
{
	lock_sock(sk);
	sk->sk_userlocks &= ~(SOCK_BINDADDR_LOCK | SOCK_BINDPORT_LOCK);
	/* Somebody may have connected it meanwhile. */
	__udp_disconnect(sk, 0);
	WRITE_ONCE(sk->sk_bound_dev_if, device);
	sk->sk_ipv6only = ipv6only;
	release_sock(sk);
}

bool kopi_sk_ipv6only(const struct sock *sk)
{
	return sk->sk_ipv6only;
}

/* Breaks a connection, as connect() to AF_UNSPEC does; it stays bound to its device. */
void kopi_sk_disconnect(struct sock *sk, int device)
{
	sk->sk_prot->disconnect(sk, 0);
	WRITE_ONCE(sk->sk_bound_dev_if, device);
}

/*
 * Sleeps until something is queued, as recvmsg() does: 1 if it may be, 0 if the receiving side is shut down,
 * or an error.
 */
int kopi_udp_wait(struct sock *sk, long *timeout)
{
	struct sk_buff_head *queue = &sk->sk_receive_queue;
	int error = 0;

	if (!*timeout)
		return -EAGAIN;
	if (!__skb_wait_for_more_packets(sk, queue, &error, timeout, (struct sk_buff *)queue))
		return 1;
	return error;
}

u32 kopi_sk_priority(const struct sock *sk)
{
	return READ_ONCE(sk->sk_priority);
}

void kopi_sk_set_priority(struct sock *sk, u32 priority)
{
	WRITE_ONCE(sk->sk_priority, priority);
}

struct pid *kopi_get_current_tgid(void)
{
	return get_pid(task_tgid(current));
}

pid_t kopi_pid_nr_here(struct pid *pid)
{
	return pid_vnr(pid);
}

uid_t kopi_current_euid(void)
{
	return from_kuid(&init_user_ns, current_euid());
}

gid_t kopi_current_egid(void)
{
	return from_kgid(&init_user_ns, current_egid());
}

void kopi_current_comm(char *comm)
{
	strscpy_pad(comm, current->group_leader->comm, TASK_COMM_LEN);
}

const void *kopi_current_tgid(void)
{
	return task_tgid(current);
}

u64 kopi_current_exec_id(void)
{
	return READ_ONCE(current->self_exec_id);
}

struct file *kopi_get_current_exe(void)
{
	return current->mm ? get_file_active(&current->mm->exe_file) : NULL;
}

struct task_struct *kopi_pid_task(struct pid *pid)
{
	return pid_task(pid, PIDTYPE_TGID);
}

bool kopi_task_exiting(const struct task_struct *task)
{
	return READ_ONCE(task->flags) & PF_EXITING;
}

u64 kopi_task_exec_id(const struct task_struct *task)
{
	return READ_ONCE(task->self_exec_id);
}

const struct cred *kopi_override_creds(const struct cred *cred)
{
	return override_creds(cred);
}

void kopi_revert_creds(const struct cred *cred)
{
	revert_creds(cred);
}

const struct cred *kopi_current_cred(void)
{
	return current_cred();
}

const struct cred *kopi_get_current_cred(void)
{
	return get_current_cred();
}

void kopi_put_cred(const struct cred *cred)
{
	put_cred(cred);
}

u32 kopi_inode_device(const struct inode *inode)
{
	return new_encode_dev(inode->i_sb->s_dev);
}

u64 kopi_inode_number(const struct inode *inode)
{
	return inode->i_ino;
}

u32 kopi_inode_generation(const struct inode *inode)
{
	return inode->i_generation;
}

struct inode *kopi_file_inode(const struct file *file)
{
	return file_inode(file);
}

struct inode *kopi_path_inode(const struct path *path)
{
	return d_backing_inode(path->dentry);
}

/* A cache of its own, so that it can be seen what is left of it. */
struct kmem_cache *kopi_slab_create(const char *name, unsigned int size,
				    unsigned int align)
{
	return kmem_cache_create(name, size, align,
				 SLAB_ACCOUNT | SLAB_NO_MERGE, NULL);
}

void *kopi_slab_alloc(struct kmem_cache *cache)
{
	return kmem_cache_alloc(cache, GFP_KERNEL);
}

struct cgroup *kopi_sk_cgroup(struct sock *sk)
{
	return sock_cgroup_ptr(&sk->sk_cgrp_data);
}

/* The number of the one at that level among those that a socket's cgroup is in, and itself; 0 for none. */
u64 kopi_sk_cgroup_id_at(struct sock *sk, u32 level)
{
	struct cgroup *cgroup = sock_cgroup_ptr(&sk->sk_cgrp_data);

	if (level > cgroup->level)
		return 0;
	return cgroup_id(cgroup->ancestors[level]);
}

u32 kopi_cgroup_level(const struct cgroup *cgroup)
{
	return cgroup->level;
}

u64 kopi_cgroup_id(const struct cgroup *cgroup)
{
	return cgroup_id(cgroup);
}

int kopi_cgroup_path_here(struct cgroup *cgroup, char *path, size_t size)
{
	return cgroup_path_ns(cgroup, path, size, current->nsproxy->cgroup_ns);
}

void kopi_cgroup_put(struct cgroup *cgroup)
{
	cgroup_put(cgroup);
}

/* Where a packet goes in the end: a source route has that in the options. */
static void ipv4_destination(const struct sk_buff *skb, struct in6_addr *to)
{
	const u8 *header = skb_network_header(skb);
	int srr = IPCB(skb)->opt.srr;

	if (srr)
		ipv6_addr_set_v4mapped(get_unaligned((__be32 *)(header + srr + header[srr + 1] - 4)), to);
}

/* The same, in a routing header that isn't at its end. */
static bool ipv6_destination(const struct sk_buff *skb, struct in6_addr *to)
{
	unsigned int offset = 0;
	const struct ipv6_rt_hdr *header;
	struct ipv6_rt_hdr place;
	int last;

	if (ipv6_hdr(skb)->nexthdr == IPPROTO_UDP ||
	    ipv6_find_hdr(skb, &offset, NEXTHDR_ROUTING, NULL, NULL) < 0)
		return true;
	header = skb_header_pointer(skb, offset, sizeof(place), &place);
	if (!header)
		return false;
	if (!header->segments_left)
		return true;
	/* Segment routing has them in reverse order. */
	last = header->type == IPV6_SRCRT_TYPE_4 ? 0 : (header->hdrlen >> 1) - 1;
	return last >= 0 && !skb_copy_bits(skb, offset + 8 + last * sizeof(*to), to, sizeof(*to));
}

/*
 * Judges what flows send where all is known of it: where it goes, whatever address the program gave, what mark
 * and priority it has, how many datagrams it is, and when, if it was corked. First of all hooks.
 */
static unsigned int local_out_hook(void *priv, struct sk_buff *skb, const struct nf_hook_state *state)
{
	struct kopi_sent sent = { .mark = skb->mark, .priority = skb->priority };
	struct sock *sk = state->sk;
	bool transformed;
	int error;

	/* Of a tunnel, what it carries was judged before. */
	if (!sk || sk != skb->sk || !sk_fullsock(sk) || !sk_is_udp(sk))
		return NF_ACCEPT;
	if (state->pf == NFPROTO_IPV4) {
		ipv6_addr_set_v4mapped(ip_hdr(skb)->daddr, &sent.via);
		transformed = IPCB(skb)->flags & IPSKB_XFRM_TRANSFORMED;
	} else {
		sent.via = ipv6_hdr(skb)->daddr;
		transformed = IP6CB(skb)->flags & IP6SKB_XFRM_TRANSFORMED;
	}
	/* After IPsec has had it, it was judged before, too. */
	if (transformed)
		return NF_ACCEPT;
	if (!pskb_may_pull(skb, skb_transport_offset(skb) + sizeof(struct udphdr)))
		return NF_DROP_ERR(-ENOMEM);
	sent.to = sent.via;
	if (state->pf == NFPROTO_IPV4)
		ipv4_destination(skb, &sent.to);
	else if (!ipv6_destination(skb, &sent.to))
		return NF_DROP_ERR(-EINVAL);
	sent.port = ntohs(udp_hdr(skb)->dest);
	sent.bytes = skb->len - skb_transport_offset(skb) - sizeof(struct udphdr);
	sent.gso_size = skb_shinfo(skb)->gso_size;
	error = kopi_local_out(sk, &sent);
	if (error)
		return NF_DROP_ERR(error);
	skb->priority = sent.priority;
	if (skb->mark == sent.mark)
		return NF_ACCEPT;
	skb->mark = sent.mark;
	error = state->pf == NFPROTO_IPV4 ? ip_route_me_harder(state->net, sk, skb, RTN_UNSPEC) :
					    ip6_route_me_harder(state->net, sk, skb);
	return error ? NF_DROP_ERR(error) : NF_ACCEPT;
}

static const struct nf_hook_ops local_out_ops[] = {
	{
		.hook = local_out_hook,
		.pf = NFPROTO_IPV4,
		.hooknum = NF_INET_LOCAL_OUT,
		.priority = INT_MIN,
	},
	{
		.hook = local_out_hook,
		.pf = NFPROTO_IPV6,
		.hooknum = NF_INET_LOCAL_OUT,
		.priority = INT_MIN,
	},
};

int kopi_hook_local_out(struct net *net)
{
	return nf_register_net_hooks(net, local_out_ops, ARRAY_SIZE(local_out_ops));
}

void kopi_unhook_local_out(struct net *net)
{
	nf_unregister_net_hooks(net, local_out_ops, ARRAY_SIZE(local_out_ops));
}

bool kopi_is_current(const void *task)
{
	return current == task;
}

const void *kopi_current(void)
{
	return current;
}

static unsigned int net_id;

static struct pernet_operations net_ops = {
	.init = kopi_net_init,
	.exit = kopi_net_exit,
	.id = &net_id,
	.size = sizeof(void *),
};

int kopi_register_pernet(void)
{
	return register_pernet_subsys(&net_ops);
}

void kopi_unregister_pernet(void)
{
	unregister_pernet_subsys(&net_ops);
	/* A hook that is gone may still be running. */
	synchronize_rcu();
}

void **kopi_net_slot(const struct net *net)
{
	return net_generic(net, net_id);
}

pid_t kopi_net_show_pid(const struct net *net, struct pid *pid)
{
	return net->user_ns == &init_user_ns ? pid_nr(pid) : pid_nr_ns(pid, ns_of_pid(pid));
}

uid_t kopi_net_show_uid(const struct net *net, uid_t uid)
{
	return from_kuid_munged(net->user_ns, make_kuid(&init_user_ns, uid));
}

gid_t kopi_net_show_gid(const struct net *net, gid_t gid)
{
	return from_kgid_munged(net->user_ns, make_kgid(&init_user_ns, gid));
}

/* The spec has no word for who may join a group. */
static const struct genl_multicast_group groups[] = {
	[KOPI_NLGRP_EVENTS] = { .name = "events", .flags = GENL_MCAST_CAP_NET_ADMIN },
};

int kopi_genl_register(void)
{
	kopi_nl_family.mcgrps = groups;
	return genl_register_family(&kopi_nl_family);
}

void kopi_genl_unregister(void)
{
	genl_unregister_family(&kopi_nl_family);
}

struct sk_buff *kopi_genlmsg_new(gfp_t gfp)
{
	/* A flow with the longest of all paths. */
	return genlmsg_new(3 * PATH_MAX, gfp);
}

void *kopi_genlmsg_put_reply(struct sk_buff *skb, struct genl_info *info, u8 cmd)
{
	return genlmsg_put_reply(skb, info, &kopi_nl_family, 0, cmd);
}

void *kopi_genlmsg_put_part(struct sk_buff *skb, struct netlink_callback *cb, u8 cmd)
{
	void *header = genlmsg_put(skb, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq,
				   &kopi_nl_family, NLM_F_MULTI, cmd);

	if (header)
		genl_dump_check_consistent(cb, header);
	return header;
}

void *kopi_genlmsg_put_event(struct sk_buff *skb, u8 cmd)
{
	return genlmsg_put(skb, 0, 0, &kopi_nl_family, 0, cmd);
}

void kopi_genlmsg_end(struct sk_buff *skb, void *header)
{
	genlmsg_end(skb, header);
}

void kopi_genlmsg_cancel(struct sk_buff *skb, void *header)
{
	genlmsg_cancel(skb, header);
}

int kopi_genlmsg_reply(struct sk_buff *skb, struct genl_info *info)
{
	return genlmsg_reply(skb, info);
}

int kopi_genlmsg_multicast(struct net *net, struct sk_buff *skb, gfp_t gfp)
{
	return genlmsg_multicast_netns(&kopi_nl_family, net, skb, 0, KOPI_NLGRP_EVENTS, gfp);
}

bool kopi_genl_has_listeners(struct net *net)
{
	return genl_has_listeners(&kopi_nl_family, net, KOPI_NLGRP_EVENTS) > 0;
}

void kopi_nlmsg_free(struct sk_buff *skb)
{
	nlmsg_free(skb);
}

struct nlattr *kopi_nla_nest_start(struct sk_buff *skb, int type)
{
	return nla_nest_start(skb, type);
}

void kopi_nla_nest_end(struct sk_buff *skb, struct nlattr *nest)
{
	nla_nest_end(skb, nest);
}

struct nlattr *kopi_genl_first_attr(const struct genl_info *info, int *left)
{
	*left = genlmsg_len(info->genlhdr);
	return genlmsg_data(info->genlhdr);
}

bool kopi_nla_ok(const struct nlattr *attr, int left)
{
	return nla_ok(attr, left);
}

struct nlattr *kopi_nla_next(const struct nlattr *attr, int *left)
{
	return nla_next(attr, left);
}

int kopi_nla_type(const struct nlattr *attr)
{
	return nla_type(attr);
}

int kopi_nla_len(const struct nlattr *attr)
{
	return nla_len(attr);
}

const void *kopi_nla_data(const struct nlattr *attr)
{
	return nla_data(attr);
}

int kopi_parse_rule_input(struct nlattr **table, const struct nlattr *attr,
			  struct netlink_ext_ack *extack)
{
	return nla_parse_nested(table, KOPI_A_RULE_WEIGHT, attr, kopi_rule_input_nl_policy,
				extack);
}

int kopi_parse_rule_named(struct nlattr **table, const struct nlattr *attr,
			  struct netlink_ext_ack *extack)
{
	return nla_parse_nested(table, KOPI_A_RULE_HANDLE, attr, kopi_rule_named_nl_policy,
				extack);
}

struct net *kopi_skb_net(const struct sk_buff *skb)
{
	return sock_net(skb->sk);
}

bool kopi_netlink_net_admin(const struct sk_buff *skb)
{
	return netlink_ns_capable(skb, sock_net(skb->sk)->user_ns, CAP_NET_ADMIN);
}

bool kopi_netlink_admin(const struct sk_buff *skb)
{
	return netlink_capable(skb, CAP_NET_ADMIN);
}

uid_t kopi_netlink_uid(const struct sk_buff *skb)
{
	return from_kuid(&init_user_ns, sk_uid(NETLINK_CB(skb).sk));
}

uid_t kopi_netlink_show_uid(const struct sk_buff *skb, uid_t uid)
{
	return from_kuid_munged(sk_user_ns(NETLINK_CB(skb).sk), make_kuid(&init_user_ns, uid));
}

gid_t kopi_netlink_show_gid(const struct sk_buff *skb, gid_t gid)
{
	return from_kgid_munged(sk_user_ns(NETLINK_CB(skb).sk), make_kgid(&init_user_ns, gid));
}

uid_t kopi_netlink_make_uid(const struct sk_buff *skb, uid_t uid)
{
	return from_kuid(&init_user_ns, make_kuid(sk_user_ns(NETLINK_CB(skb).sk), uid));
}

gid_t kopi_netlink_make_gid(const struct sk_buff *skb, gid_t gid)
{
	return from_kgid(&init_user_ns, make_kgid(sk_user_ns(NETLINK_CB(skb).sk), gid));
}

static netdev_tx_t mon_xmit(struct sk_buff *skb, struct net_device *dev)
{
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static void mon_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	dev_lstats_read(dev, &stats->rx_packets, &stats->rx_bytes);
}

static const struct net_device_ops mon_ops = {
	.ndo_open = kopi_mon_open,
	.ndo_stop = kopi_mon_stop,
	.ndo_start_xmit = mon_xmit,
	.ndo_get_stats64 = mon_get_stats64,
};

/* There, so that packet sockets find the IP header behind ours; nobody sends by it. */
static int mon_create(struct sk_buff *skb, struct net_device *dev, unsigned short type,
		      const void *daddr, const void *saddr, unsigned int len)
{
	return -EOPNOTSUPP;
}

static const struct header_ops mon_header_ops = {
	.create = mon_create,
};

/* As drivers/net/nlmon.c. */
static void mon_setup(struct net_device *dev)
{
	dev->type = ARPHRD_NONE;
	dev->priv_flags |= IFF_NO_QUEUE | IFF_NO_ADDRCONF;
	dev->lltx = true;
	dev->netdev_ops = &mon_ops;
	dev->header_ops = &mon_header_ops;
	dev->needs_free_netdev = true;
	dev->features = NETIF_F_SG | NETIF_F_FRAGLIST | NETIF_F_HIGHDMA;
	dev->flags = IFF_NOARP;
	dev->pcpu_stat_type = NETDEV_PCPU_STAT_LSTATS;
	dev->mtu = ETH_MAX_MTU;
}

static struct rtnl_link_ops mon_link_ops __read_mostly = {
	.kind = "kopimon",
	.setup = mon_setup,
};

int kopi_mon_register(void)
{
	return rtnl_link_register(&mon_link_ops);
}

void kopi_mon_unregister(void)
{
	rtnl_link_unregister(&mon_link_ops);
}

static DECLARE_DELAYED_WORK(mon_unprobe, kopi_mon_unprobe);

void kopi_mon_unprobe_later(void)
{
	mod_delayed_work(system_dfl_wq, &mon_unprobe, HZ);
}

void kopi_mon_cancel_unprobe(void)
{
	cancel_delayed_work_sync(&mon_unprobe);
}

bool kopi_mon_is(const struct net_device *dev)
{
	return dev->netdev_ops == &mon_ops;
}

bool kopi_net_is_of_initial_users(const struct net *net)
{
	return net->user_ns == &init_user_ns;
}

/*
 * As dev_get_by_index_rcu(), whose chains are as long as a user wants who chooses the
 * devices' numbers. RCU is held.
 */
const struct net_device *kopi_net_dev(struct net *net, int ifindex)
{
	return xa_load(&net->dev_by_index, ifindex);
}

/* The number of a device that may be gone, among the first of a namespace; or 0. RCU is held. */
int kopi_net_find_dev(struct net *net, const struct net_device *wanted, u32 most)
{
	struct net_device *dev;

	for_each_netdev_rcu(net, dev) {
		if (dev == wanted)
			return dev->ifindex;
		if (!--most)
			break;
	}
	return 0;
}

/* Modules can't name this tracepoint: it isn't exported. */
static void find_start_xmit(struct tracepoint *tp, void *found)
{
	if (!strcmp(tp->name, "net_dev_start_xmit"))
		*(struct tracepoint **)found = tp;
}

struct tracepoint *kopi_tracepoint_start_xmit(void)
{
	struct tracepoint *found = NULL;

	for_each_kernel_tracepoint(find_start_xmit, &found);
	return found;
}

static void start_xmit_probe(void *data, const struct sk_buff *skb,
			     const struct net_device *dev)
{
	kopi_seen_transmitted((struct sk_buff *)skb, (struct net_device *)dev);
}

int kopi_probe_start_xmit(struct tracepoint *tp)
{
	return tracepoint_probe_register(tp, start_xmit_probe, NULL);
}

void kopi_unprobe_start_xmit(struct tracepoint *tp)
{
	tracepoint_probe_unregister(tp, start_xmit_probe, NULL);
}

static void kfree_skb_probe(void *data, struct sk_buff *skb, void *location,
			    enum skb_drop_reason reason, const struct sock *rx_sk)
{
	kopi_seen_dropped(skb, reason, (struct sock *)rx_sk);
}

int kopi_probe_kfree_skb(void)
{
	return register_trace_kfree_skb(kfree_skb_probe, NULL);
}

void kopi_unprobe_kfree_skb(void)
{
	unregister_trace_kfree_skb(kfree_skb_probe, NULL);
}

void kopi_tracepoint_synchronize_unregister(void)
{
	tracepoint_synchronize_unregister();
}

bool kopi_irqs_disabled(void)
{
	return irqs_disabled();
}

struct net *kopi_dev_net(const struct net_device *dev)
{
	return dev_net(dev);
}

int kopi_dev_ifindex(const struct net_device *dev)
{
	return READ_ONCE(dev->ifindex);
}

void kopi_dev_rx_dropped_inc(struct net_device *dev)
{
	dev_core_stats_rx_dropped_inc(dev);
}

void kopi_dev_lstats_add(struct net_device *dev, unsigned int len)
{
	dev_lstats_add(dev, len);
}

bool kopi_sk_fullsock(const struct sock *sk)
{
	return sk_fullsock(sk);
}

struct sk_buff *kopi_alloc_skb(unsigned int size, gfp_t gfp)
{
	return alloc_skb(size, gfp);
}

struct sock *kopi_skb_sk(const struct sk_buff *skb)
{
	return skb->sk;
}

struct net_device *kopi_skb_dev(const struct sk_buff *skb)
{
	return skb->dev;
}

void kopi_skb_set_dev(struct sk_buff *skb, struct net_device *dev)
{
	skb->dev = dev;
}

int kopi_skb_network_offset(const struct sk_buff *skb)
{
	return skb_network_offset(skb);
}

unsigned int kopi_skb_headroom(const struct sk_buff *skb)
{
	return skb_headroom(skb);
}

unsigned int kopi_skb_headlen(const struct sk_buff *skb)
{
	return skb_headlen(skb);
}

void kopi_skb_gso_reset(struct sk_buff *skb)
{
	skb_gso_reset(skb);
}

void kopi_skb_reset_mac_header(struct sk_buff *skb)
{
	skb_reset_mac_header(skb);
}

void kopi_skb_reset_network_header(struct sk_buff *skb)
{
	skb_reset_network_header(skb);
}

void kopi_skb_set_protocol(struct sk_buff *skb, u16 protocol)
{
	skb->protocol = htons(protocol);
}

bool kopi_skb_is_ip(const struct sk_buff *skb)
{
	return skb->protocol == htons(ETH_P_IP) || skb->protocol == htons(ETH_P_IPV6);
}

static int target_open(struct net_device *dev)
{
	return kopi_target_open(*(void **)netdev_priv(dev));
}

static int target_stop(struct net_device *dev)
{
	kopi_target_stop(*(void **)netdev_priv(dev));
	return 0;
}

static int target_xdp_xmit(struct net_device *dev, int n, struct xdp_frame **frames, u32 flags)
{
	return kopi_target_xmit(*(void **)netdev_priv(dev), n, frames, flags);
}

static const struct net_device_ops target_ops = {
	.ndo_open = target_open,
	.ndo_stop = target_stop,
	.ndo_start_xmit = mon_xmit,
	.ndo_xdp_xmit = target_xdp_xmit,
};

static void target_setup(struct net_device *dev)
{
	dev->type = ARPHRD_NONE;
	dev->priv_flags |= IFF_NO_QUEUE | IFF_NO_ADDRCONF;
	dev->lltx = true;
	dev->netns_immutable = true;
	dev->netdev_ops = &target_ops;
	dev->needs_free_netdev = true;
	dev->flags = IFF_NOARP;
	dev->mtu = ETH_MAX_MTU;
	dev->xdp_features = NETDEV_XDP_ACT_NDO_XMIT;
}

struct net_device *kopi_target_new(struct net *net, void *receiver)
{
	struct net_device *dev;

	dev = alloc_netdev(sizeof(void *), "kopirx%d", NET_NAME_ENUM, target_setup);
	if (dev) {
		dev_net_set(dev, net);
		*(void **)netdev_priv(dev) = receiver;
	}
	return dev;
}

bool kopi_dev_is_up(const struct net_device *dev)
{
	return dev->flags & IFF_UP;
}

bool kopi_dev_strips_vlans(const struct net_device *dev)
{
	return dev->features & (NETIF_F_HW_VLAN_CTAG_RX | NETIF_F_HW_VLAN_STAG_RX);
}

/* Whether the driver runs an XDP program of this name. In an RCU read-side section. */
bool kopi_dev_runs(const struct net_device *dev, const char *name)
{
	const struct bpf_prog *prog = READ_ONCE(dev->xdp_state[XDP_MODE_DRV].prog);

	return prog && !strcmp(prog->aux->name, name);
}

bool kopi_dev_merges_received(const struct net_device *dev)
{
	return dev->features & NETIF_F_GRO;
}

bool kopi_udp_wants_trains(const struct sock *sk)
{
	return udp_test_bit(GRO_ENABLED, sk);
}

void kopi_skb_add_xdp_frame(struct sk_buff *skb, int i, const struct xdp_frame *frame,
			    unsigned int skip, unsigned int len)
{
	const void *start = frame->data + skip;
	struct page *page = virt_to_head_page(start);

	if (frame->mem_type == MEM_TYPE_PAGE_POOL)
		skb_mark_for_recycle(skb);
	skb_add_rx_frag(skb, i, page, start - page_address(page), len, frame->frame_sz);
}

/* Of the NAPI that its memory is for; 0 if that isn't known. */
u32 kopi_xdp_frame_napi_id(const struct xdp_frame *frame)
{
	const struct napi_struct *napi = NULL;
	netmem_ref memory;

	if (frame->mem_type == MEM_TYPE_PAGE_POOL) {
		memory = netmem_compound_head(virt_to_netmem(frame->data));
		napi = READ_ONCE(netmem_get_pp(memory)->p.napi);
	}
	return napi ? napi->napi_id : 0;
}

void kopi_skb_set_napi_id(struct sk_buff *skb, u32 id)
{
	skb->napi_id = id;
}

void kopi_skb_set_verified(struct sk_buff *skb)
{
	skb->ip_summed = CHECKSUM_UNNECESSARY;
}

/* As udp_gro_complete_segment(). */
void kopi_skb_set_udp_train(struct sk_buff *skb, unsigned int udp, u16 size, u16 segs)
{
	skb->csum_start = skb_headroom(skb) + udp;
	skb->csum_offset = offsetof(struct udphdr, check);
	skb->ip_summed = CHECKSUM_PARTIAL;
	skb_shinfo(skb)->gso_size = size;
	skb_shinfo(skb)->gso_segs = segs;
	skb_shinfo(skb)->gso_type = SKB_GSO_UDP_L4;
}

void kopi_skb_set_received(struct sk_buff *skb, struct net_device *dev)
{
	skb->protocol = eth_type_trans(skb, dev);
}

static int netdev_event(struct notifier_block *block, unsigned long event, void *info)
{
	struct netdev_notifier_changeupper_info *upper;
	struct net_device *dev = netdev_notifier_info_to_dev(info);

	/* They come and go with ports, and nothing is made of them. */
	if (dev->netdev_ops == &target_ops) {
		if (event != NETDEV_PRECHANGEUPPER)
			return NOTIFY_DONE;
		NL_SET_ERR_MSG(netdev_notifier_info_to_extack(info),
			       "nothing can be put on a device that takes what KOPI receives");
		return notifier_from_errno(-EOPNOTSUPP);
	}
	switch (event) {
	case NETDEV_CHANGEUPPER:
		upper = container_of(info, struct netdev_notifier_changeupper_info, info);
		if (upper->linking)
			kopi_device_going(upper->upper_dev);
		break;
	case NETDEV_DOWN:
		kopi_device_down(dev);
		break;
	case NETDEV_FEAT_CHANGE:
		kopi_device_changed(dev);
		break;
	case NETDEV_UNREGISTER:
		kopi_device_going(dev);
		break;
	}
	return NOTIFY_DONE;
}

static struct notifier_block netdev_block = {
	.notifier_call = netdev_event,
};

int kopi_netdev_register(void)
{
	return register_netdevice_notifier(&netdev_block);
}

void kopi_netdev_unregister(void)
{
	unregister_netdevice_notifier(&netdev_block);
}

void kopi_rtnl_lock(void)
{
	rtnl_lock();
}

void kopi_rtnl_unlock(void)
{
	rtnl_unlock();
}

struct net_device *kopi_dev_get_by_index(struct net *net, int ifindex)
{
	return dev_get_by_index(net, ifindex);
}

void kopi_dev_put(struct net_device *dev)
{
	dev_put(dev);
}

bool kopi_dev_is_registered(const struct net_device *dev)
{
	return dev->reg_state == NETREG_REGISTERED;
}

bool kopi_dev_is_ethernet(const struct net_device *dev)
{
	return dev->type == ARPHRD_ETHER;
}

/*
 * Whether it has hardware, and a driver of its own: what is made of other devices,
 * or of software, has hooks of others behind it. Under RTNL.
 */
bool kopi_dev_is_nic(const struct net_device *dev)
{
	const struct device *parent = dev->dev.parent;

	return parent && parent->bus && parent->driver && !dev->rtnl_link_ops &&
	       list_empty(&dev->adj_list.lower);
}

/* As the stack asks before it gives a driver anything. */
bool kopi_dev_is_ready(const struct net_device *dev)
{
	return netif_running(dev) && netif_device_present(dev) && netif_carrier_ok(dev);
}

/* As xdp_ok_fwd_dev() asks. */
bool kopi_dev_takes_length(const struct net_device *dev, unsigned int len)
{
	return len <= READ_ONCE(dev->mtu) + dev->hard_header_len + VLAN_HLEN;
}

bool kopi_dev_has_xdp_xmit(const struct net_device *dev)
{
	return dev->netdev_ops->ndo_xdp_xmit;
}

bool kopi_dev_can_xdp_xmit(const struct net_device *dev)
{
	return READ_ONCE(dev->xdp_features) & NETDEV_XDP_ACT_NDO_XMIT;
}

int kopi_dev_xdp_xmit(struct net_device *dev, int n, struct xdp_frame **frames, u32 flags)
{
	if (!kopi_dev_is_ready(dev))
		return -ENETDOWN;
	return dev->netdev_ops->ndo_xdp_xmit(dev, n, frames, flags);
}

bool kopi_dev_has_tcx_egress(const struct net_device *dev)
{
	return rcu_access_pointer(dev->tcx_egress);
}

bool kopi_dev_nit_active(const struct net_device *dev)
{
	return dev_nit_active_rcu(dev);
}

unsigned int kopi_dev_real_num_tx_queues(const struct net_device *dev)
{
	return READ_ONCE(dev->real_num_tx_queues);
}

/* As __dev_xmit_skb() asks. */
bool kopi_txq_can_bypass(struct net_device *dev, unsigned int index)
{
	struct netdev_queue *txq = netdev_get_tx_queue(dev, index);
	struct Qdisc *q = rcu_dereference_bh(txq->qdisc);

	return !q->enqueue || (q->flags & TCQ_F_CAN_BYPASS && qdisc_is_empty(q) &&
			       !test_bit(__QDISC_STATE_DEACTIVATED, &q->state));
}

/* As __dev_xmit_skb() counts what bypasses. */
void kopi_qdisc_bstats_update(struct net_device *dev, unsigned int index, struct sk_buff *skb)
{
	struct netdev_queue *txq = netdev_get_tx_queue(dev, index);
	struct Qdisc *q = rcu_dereference_bh(txq->qdisc);

	if (qdisc_is_percpu_stats(q)) {
		qdisc_bstats_cpu_update(q, skb);
		return;
	}
	spin_lock(qdisc_lock(q));
	qdisc_bstats_update(q, skb);
	spin_unlock(qdisc_lock(q));
}

static unsigned int egress_hook(void *port, struct sk_buff *skb,
				const struct nf_hook_state *state)
{
	return kopi_egress(port, skb);
}

void kopi_egress_ops_init(struct nf_hook_ops *ops, struct net_device *dev, void *port)
{
	*ops = (struct nf_hook_ops){
		.hook = egress_hook,
		.dev = dev,
		.priv = port,
		.pf = NFPROTO_NETDEV,
		.hooknum = NF_NETDEV_EGRESS,
		.priority = INT_MAX,
	};
}

bool kopi_egress_is_last(const struct net_device *dev, const void *port)
{
	const struct nf_hook_entries *e = rcu_dereference_bh(dev->nf_hooks_egress);

	return e && e->hooks[e->num_hook_entries - 1].priv == port;
}

static enum hrtimer_restart tick(struct hrtimer *timer)
{
	kopi_tick(timer);
	return HRTIMER_NORESTART;
}

void kopi_hrtimer_setup(struct hrtimer *timer)
{
	hrtimer_setup(timer, tick, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_SOFT);
}

void kopi_hrtimer_start(struct hrtimer *timer, u64 ns)
{
	hrtimer_start(timer, ns_to_ktime(ns), HRTIMER_MODE_REL_PINNED_SOFT);
}

void kopi_hrtimer_cancel(struct hrtimer *timer)
{
	hrtimer_cancel(timer);
}

u16 kopi_skb_gso_segs(const struct sk_buff *skb)
{
	return skb_shinfo(skb)->gso_segs;
}

bool kopi_skb_is_udp_train(const struct sk_buff *skb)
{
	return skb_is_gso(skb) && skb_shinfo(skb)->gso_type & SKB_GSO_UDP_L4;
}

/* Has nothing that a driver or the device would do to it, but segmentation and checksums. */
bool kopi_skb_is_plain(const struct sk_buff *skb)
{
	return !skb->encapsulation && !skb_vlan_tag_present(skb) && !skb_sec_path(skb) &&
	       !(skb_shinfo(skb)->tx_flags & SKBTX_ANY_TSTAMP) && !skb->tstamp &&
	       (!skb_is_gso(skb) || kopi_skb_is_udp_train(skb));
}

bool kopi_skb_is_partial(const struct sk_buff *skb)
{
	return skb->ip_summed == CHECKSUM_PARTIAL;
}

unsigned int kopi_skb_truesize(const struct sk_buff *skb)
{
	return skb->truesize;
}

void kopi_skb_dst_force(struct sk_buff *skb)
{
	skb_dst_force(skb);
}

void kopi_nf_skip_egress(struct sk_buff *skb)
{
	nf_skip_egress(skb, true);
}

int kopi_dev_queue_xmit(struct sk_buff *skb)
{
	return dev_queue_xmit(skb);
}

void kopi_skb_queue_head_init(struct sk_buff_head *list)
{
	__skb_queue_head_init(list);
}

void kopi_skb_queue_tail(struct sk_buff_head *list, struct sk_buff *skb)
{
	__skb_queue_tail(list, skb);
}

struct sk_buff *kopi_skb_dequeue(struct sk_buff_head *list)
{
	return __skb_dequeue(list);
}

struct sk_buff *kopi_skb_peek(const struct sk_buff_head *list)
{
	return skb_peek(list);
}

unsigned int kopi_sk_wmem_alloc(const struct sock *sk)
{
	return refcount_read(&sk->sk_wmem_alloc);
}

struct page *kopi_alloc_pages_atomic(unsigned int order)
{
	return alloc_pages(GFP_ATOMIC | __GFP_COMP | __GFP_NOWARN, order);
}

void *kopi_page_address(const struct page *page)
{
	return page_address(page);
}

int kopi_page_ref_count(const struct page *page)
{
	return page_ref_count(page);
}

void kopi_page_ref_add(struct page *page, int n)
{
	page_ref_add(page, n);
}

void kopi_put_page(struct page *page)
{
	put_page(page);
}

unsigned int kopi_get_order(unsigned long size)
{
	return get_order(size);
}
