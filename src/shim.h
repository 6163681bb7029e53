/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The declarations of KOPI's C for Rust, by file of shim/. Most functions are helpers for inline
 * functions, macros and fields of the kernel that bindgen can't reach, and are named after these.
 * Files with code of their own say so at their head.
 */
#ifndef _KOPI_SHIM_H
#define _KOPI_SHIM_H

#include <linux/hrtimer.h>
#include <linux/net.h>
#include <linux/netfilter.h>
#include <linux/rhashtable-types.h>
#include <linux/skbuff.h>
#include <linux/sockptr.h>
#include <linux/workqueue.h>
#include <net/sock.h>
#include <net/xdp.h>

#include <net/genetlink.h>

/*
 * How long a look-up of a route holds, in jiffies: some of what it depends on has no generation
 * (kopi_look_up4_ends()).
 */
#define ROUTE_AGE (HZ / 10)

struct cgroup;
struct cred;
struct flowi4;
struct vm_area_struct;

/* shim/module.c */
int kopi_family_parameter(void);
unsigned int kopi_copybreak_parameter(void);
void kopi_module_get(void);
void kopi_module_put(void);

/* shim/sock.c */
void kopi_sock_graft(struct sock *sk, struct socket *parent);
void kopi_sock_put(struct sock *sk);
struct net *kopi_sock_net(const struct sock *sk);
uid_t kopi_sk_uid(const struct sock *sk);
gid_t kopi_sk_gid(const struct sock *sk);
void *kopi_sk_inode_private(const struct sock *sk);
void kopi_set_sk_inode_private(struct sock *sk, void *data);
bool kopi_sock_writeable(const struct sock *sk);
int kopi_sock_error(struct sock *sk);
bool kopi_sock_wants_timestamp(const struct sock *sk);
bool kopi_sock_flag_rcvmark(const struct sock *sk);
long kopi_sock_rcvtimeo(const struct sock *sk, bool noblock);
int kopi_sock_intr_errno(long timeo);
bool kopi_sk_can_busy_loop(const struct sock *sk);
bool kopi_sk_busy_loop_timeout(struct sock *sk, unsigned long start_time);
wait_queue_head_t *kopi_sk_sleep(struct sock *sk);
void kopi_sk_wake_async(struct sock *sk);
void kopi_write_lock_bh_callback(struct sock *sk);
void kopi_write_unlock_bh_callback(struct sock *sk);
bool kopi_inet_has_options(const struct sock *sk);
bool kopi_sk_no_check_tx(const struct sock *sk);
bool kopi_sock_flag_txtime(const struct sock *sk);
bool kopi_sock_flag_localroute(const struct sock *sk);
bool kopi_sk_has_policy_out(const struct sock *sk);
u8 kopi_inet_sk_flowi_flags(const struct sock *sk);
void kopi_sock_rps_record_flow(const struct sock *sk);
bool kopi_sock_is_nospace(const struct sock *sk);
bool kopi_inet_recverr(const struct sock *sk, const struct dst_entry *dst);
bool kopi_bh_lock_sock_unowned(struct sock *sk);
void kopi_bh_unlock_sock(struct sock *sk);
__be32 kopi_sk_rcv_saddr(const struct sock *sk);
__be32 kopi_sk_daddr(const struct sock *sk);
const struct in6_addr *kopi_sk_v6_saddr(const struct sock *sk);
const struct in6_addr *kopi_sk_v6_rcv_saddr(const struct sock *sk);
const struct in6_addr *kopi_sk_v6_daddr(const struct sock *sk);
__be16 kopi_sk_dport(const struct sock *sk);
int kopi_sk_bound_dev_if(const struct sock *sk);
bool kopi_sk_is_kernels(const struct sock *sk);
void kopi_sk_set_mark(struct sock *sk, u32 mark);
void kopi_sk_unbind(struct sock *sk, int device, bool ipv6only);
void kopi_forget_classic_filter(struct sock *sk);
bool kopi_sk_ipv6only(const struct sock *sk);
void kopi_sk_disconnect(struct sock *sk, int device);
u32 kopi_sk_priority(const struct sock *sk);
void kopi_sk_set_priority(struct sock *sk, u32 priority);
u8 kopi_sk_default_ttl(const struct sock *sk);
bool kopi_sk_fullsock(const struct sock *sk);
unsigned int kopi_sk_wmem_alloc(const struct sock *sk);

/* shim/udp.c */
bool kopi_udp_queues_empty(struct sock *sk);
bool kopi_skb_is_mapped(const struct sk_buff *skb);
bool kopi_udp_is_of_old_end(const struct sock *sk, const struct sk_buff *skb);

bool kopi_udp_is_first_of_old_end(struct sock *sk);
bool kopi_udp_is_queueing(struct sock *sk);
void kopi_udp_inc_stats(const struct sock *sk, const struct dst_entry *dst, int field);
void kopi_udp_count_received(struct sock *sk, const struct sk_buff *skb);
void kopi_udp_count_dropped(struct sock *sk, const struct sk_buff *skb, int datagrams);
bool kopi_udp4_recvmsg_hooked(struct sock *sk);
bool kopi_udp6_recvmsg_hooked(struct sock *sk);
int kopi_run_udp4_recvmsg(struct sock *sk, void *addr, int *len);
int kopi_run_udp6_recvmsg(struct sock *sk, void *addr, int *len);
bool kopi_udp_is_corked(const struct sock *sk);
u16 kopi_udp_gso_size(const struct sock *sk);
bool kopi_cgroup_bpf_enabled_udp4_sendmsg(void);
int kopi_udp_wait(struct sock *sk, long *timeout, bool (*is_over)(void *arg), void *arg);
bool kopi_udp_wants_gro(const struct sock *sk);

/* shim/tcp.c */
/* What a stream has sent and received: segments with payload, which wrap, and bytes of payload. */
struct kopi_tcp_counts {
	u64 tx_bytes;
	u64 rx_bytes;
	u32 tx_segments;
	u32 rx_segments;
};

void kopi_lock_sock(struct sock *sk);
int kopi_tcp_occupy(struct sock *sk);
void kopi_tcp_vacate(struct sock *sk);
bool kopi_tcp_has_ulp(const struct sock *sk);
void kopi_tcp_abort_locked(struct sock *sk, int error);
void kopi_tcp_unbind(struct sock *sk, int device, bool ipv6only);
unsigned long kopi_sk_max_pacing_rate(const struct sock *sk);
void kopi_sk_set_max_pacing_rate(struct sock *sk, unsigned long rate);
void kopi_tcp_counts(const struct sock *sk, struct kopi_tcp_counts *counts);

/* shim/skb.c */
bool kopi_skb_is_ipv4(const struct sk_buff *skb);
int kopi_skb_iif(const struct sk_buff *skb);
int kopi_ip6cb_iif(const struct sk_buff *skb);
int kopi_pktinfo_cb_ifindex(const struct sk_buff *skb);
u32 kopi_skb_mark(const struct sk_buff *skb);
u32 kopi_skb_priority(const struct sk_buff *skb);
const struct iphdr *kopi_ip_hdr(const struct sk_buff *skb);
const struct ipv6hdr *kopi_ipv6_hdr(const struct sk_buff *skb);
const struct udphdr *kopi_udp_hdr(const struct sk_buff *skb);
unsigned int kopi_skb_gso_size(const struct sk_buff *skb);
u8 kopi_ipv6_get_dsfield(const struct ipv6hdr *ip6h);
u64 kopi_skb_timestamp_ns(struct sk_buff *skb);
/* IP IDs that are reserved for a destination: how many were, the next one, and when, in jiffies. */
struct kopi_ip_ids {
	u16 reserved;
	u16 left;
	u16 next;
	u32 since;
};
void kopi_ip_select_ident(struct iphdr *iph, struct sock *sk, bool ignore_df,
			  struct kopi_ip_ids *ids);
void *kopi_skb_begin(struct sk_buff *skb, unsigned int headroom, unsigned int len,
		     int transport, u32 mark);
u32 kopi_skb_flow_hash(struct sk_buff *skb, u32 known);
u32 kopi_csum_partial_copy_nocheck(const void *from, void *to, int len);
void kopi_skb_dst_set_noref(struct sk_buff *skb, struct dst_entry *dst);
void kopi_ubuf_init(struct ubuf_info *ubuf, const struct ubuf_info_ops *ops);
bool kopi_ubuf_put(struct ubuf_info *ubuf);
struct sk_buff *kopi_alloc_skb(unsigned int size, gfp_t gfp);
struct sock *kopi_skb_sk(const struct sk_buff *skb);
struct net_device *kopi_skb_dev(const struct sk_buff *skb);
void kopi_skb_set_dev(struct sk_buff *skb, struct net_device *dev);
int kopi_skb_network_offset(const struct sk_buff *skb);
unsigned int kopi_skb_headroom(const struct sk_buff *skb);
unsigned int kopi_skb_headlen(const struct sk_buff *skb);
void kopi_skb_gso_reset(struct sk_buff *skb);
void kopi_skb_reset_mac_header(struct sk_buff *skb);
void kopi_skb_reset_network_header(struct sk_buff *skb);
void kopi_skb_add_xdp_frame(struct sk_buff *skb, int i, const struct xdp_frame *frame,
			    unsigned int skip, unsigned int len);
u32 kopi_xdp_frame_napi_id(const struct xdp_frame *frame);
void kopi_skb_set_napi_id(struct sk_buff *skb, u32 id);
void kopi_skb_set_verified(struct sk_buff *skb);
void kopi_skb_set_received(struct sk_buff *skb, struct net_device *dev);
void kopi_skb_set_protocol(struct sk_buff *skb, u16 protocol);
bool kopi_skb_is_ip(const struct sk_buff *skb);
bool kopi_skb_has_route(const struct sk_buff *skb);
bool kopi_skb_is_being_transformed(struct sk_buff *skb);
u16 kopi_skb_gso_segs(const struct sk_buff *skb);
bool kopi_skb_is_udp_gso(const struct sk_buff *skb);
bool kopi_skb_is_plain(const struct sk_buff *skb);
bool kopi_skb_is_partial(const struct sk_buff *skb);
unsigned int kopi_skb_truesize(const struct sk_buff *skb);
void kopi_skb_dst_force(struct sk_buff *skb);
void kopi_skb_forget_sched_stamp(struct sk_buff *skb);
void kopi_nf_skip_egress(struct sk_buff *skb);
int kopi_dev_queue_xmit(struct sk_buff *skb);
void kopi_skb_queue_head_init(struct sk_buff_head *list);
void kopi_skb_queue_tail(struct sk_buff_head *list, struct sk_buff *skb);
struct sk_buff *kopi_skb_dequeue(struct sk_buff_head *list);
struct sk_buff *kopi_skb_peek(const struct sk_buff_head *list);

/* shim/dst.c */
void kopi_flowi4_init_output(struct flowi4 *fl4, int oif, u32 mark, u8 tos, u8 flags,
			     __be32 daddr, __be32 saddr, __be16 dport, __be16 sport,
			     const struct sock *sk);
int kopi_rt_genid(const struct sock *sk);
bool kopi_dst_check(struct dst_entry *dst, u32 cookie);
u32 kopi_dst4_mtu(const struct dst_entry *dst, u8 discovery);
bool kopi_dst_is_transformed(const struct dst_entry *dst);
bool kopi_look_up_lasts(const struct sock *sk, unsigned long until);
unsigned long kopi_look_up4_ends(void);
unsigned int kopi_ll_reserved_space(const struct dst_entry *dst);
bool kopi_dst_has_checksums(const struct dst_entry *dst);
bool kopi_dst_is_uncached(const struct dst_entry *dst);
u32 kopi_rt_flags(const struct dst_entry *dst);
u32 kopi_dst_hoplimit(const struct dst_entry *dst);
bool kopi_dst_has_queues(const struct dst_entry *dst);
bool kopi_ip_mtu_locked(const struct dst_entry *dst);

/* shim/ipv6.c */
/* The options of an IPv6 sock that affect each datagram. */
struct kopi_options6 {
	struct in6_addr source;
	/* Only of a connected sock. */
	struct in6_addr peer;
	/* Of a connected sock, with other bits; or 0. */
	__be32 flow_label;
	/* To which it is bound, or of IPV6_PKTINFO; or 0. */
	int device;
	/* Of IPV6_UNICAST_IF, or 0. */
	int unicast_device;
	/* Negative if the route decides. */
	int hop_limit;
	u32 mark;
	u32 user;
	/* IPV6_MTU, or 0. */
	u32 fragment;
	/* The hash of a sock that has one of its own, or 0. */
	u32 hash;
	__be16 source_port;
	__be16 peer_port;
	/* IPV6_MTU_DISCOVER */
	u8 discovery;
	u8 tclass;
	/* Of IPV6_ADDR_PREFERENCES. */
	u8 preferences;
	bool connected;
	/* Labels are made of the flow hash; with the flag of stateless ones. */
	bool has_labels;
	bool has_stateless_labels;
};
bool kopi_options6(const struct sock *sk, struct kopi_options6 *options);
/* What a route is looked up for. */
struct kopi_flow6 {
	struct in6_addr to;
	/* All zeroes if the route chooses it. */
	struct in6_addr from;
	int device;
	u32 mark;
	__be16 port;
	__be16 source_port;
	u8 tclass;
	/* The source is that of a control message. */
	bool is_from_message;
};
/* What says whether a look-up would find the same again. */
struct kopi_generation6 {
	int routes;
	int addresses;
	u32 labels;
	u32 cookie;
	unsigned long until;
};
struct dst_entry *kopi_connected_route6(struct sock *sk, const struct kopi_options6 *options,
					u32 *cookie);
struct dst_entry *kopi_look_up_route6(struct sock *sk, const struct kopi_flow6 *flow,
				      struct in6_addr *source, struct kopi_generation6 *generation);
bool kopi_generation6_is_current(const struct sock *sk, const struct kopi_generation6 *generation);
bool kopi_route6_is_plain(const struct dst_entry *dst);
u32 kopi_dst6_mtu(const struct dst_entry *dst, const struct kopi_options6 *options);
u32 kopi_flow6_hash(const struct in6_addr *from, const struct in6_addr *to, __be16 source_port,
		    __be16 port);
void kopi_udp6_hwcsum(struct sk_buff *skb);
bool kopi_cgroup_bpf_enabled_udp6_sendmsg(void);

/* shim/frame.c */
enum kopi_hooks {
	/* The packet was dropped, queued, or taken. */
	KOPI_HOOKS_GONE,
	/* It can leave as it is. */
	KOPI_HOOKS_PASSED,
	/* The stack has to go on behind these hooks. */
	KOPI_HOOKS_AFTER_LOCAL_OUT,
	KOPI_HOOKS_AFTER_POST_ROUTING,
};
void *kopi_egress_only(const struct net_device *dev, const void *function);
bool kopi_output_is_plain(struct sock *sk, const struct dst_entry *dst);
struct net_device *kopi_dst_dev(const struct dst_entry *dst);
bool kopi_sock_can_send(const struct sock *sk);
void kopi_skb_settle_dev(struct sk_buff *skb);
struct sk_buff *kopi_alloc_frames_skb(struct sock *sk, struct dst_entry *dst, unsigned int bytes);
bool kopi_sock_charge(struct sock *sk, unsigned int bytes);
void kopi_skb_lower_charge(struct sk_buff *skb, unsigned int bytes);
void kopi_sock_uncharge(struct sock *sk, unsigned int bytes);
void kopi_ip_finish_header(struct iphdr *iph, struct sock *sk, unsigned int len, bool ignore_df,
			   struct kopi_ip_ids *ids);
bool kopi_has_output_hooks(const struct sock *sk, const struct dst_entry *dst);
/* For shim/receive.c, too. */
struct sk_buff *kopi_build_skb(struct sk_buff *skb, void *head, unsigned int size);
struct sk_buff *kopi_build_frame_skb(struct sk_buff *skb, void *head, unsigned int size,
				     unsigned int start, unsigned int len, struct sock *sk,
				     struct dst_entry *dst, u32 mark, bool ignore_df);
void kopi_release_frame_skb(struct sk_buff *skb);
void kopi_free_frame_skb(struct sk_buff *skb);
enum kopi_hooks kopi_ask_output_hooks(struct sock *sk, struct sk_buff *skb, int *error);
int kopi_output_by_stack(struct sock *sk, struct sk_buff *skb, enum kopi_hooks stage);
void kopi_drop_queued(struct net *net);
/* Exported, and declared in net/netfilter/nf_internals.h. */
void nf_queue_nf_hook_drop(struct net *net);
void kopi_skb_set_flow_hash(struct sk_buff *skb, u32 hash);
bool kopi_put_hard_header(const struct dst_entry *dst, void *header);
void kopi_count_output(const struct sock *sk, const struct dst_entry *dst, unsigned int len);
void kopi_output_inc_stats(const struct sock *sk, const struct dst_entry *dst, int field);
int kopi_xmit_frame_copy(const struct sk_buff *of, struct sock *sk, const void *frame,
			 unsigned int len, u32 mark, u32 priority, u32 hash, bool skip);

/* shim/rx_observer.c */
enum kopi_rx_observer {
	KOPI_RX_NONE,
	KOPI_RX_TAP,
	KOPI_RX_TC,
	KOPI_RX_HOOK,
	KOPI_RX_XDP,
	KOPI_RX_RAW,
	KOPI_RX_UPPER,
	KOPI_RX_RPS,
	KOPI_RX_IPSEC,
};
enum kopi_rx_observer kopi_dev_rx_observer(const struct net_device *dev);

/* shim/receive.c */
struct sk_buff *kopi_wrap_frame(struct sk_buff *skb, bool is_plain, struct xdp_frame *frame,
				struct net_device *dev, unsigned int len, u32 napi_id);
struct dst_entry *kopi_hold_route(const struct sk_buff *skb);
struct dst_entry *kopi_skb_dst(const struct sk_buff *skb);
void kopi_unwrap_frame(struct sk_buff *skb);
bool kopi_is_frame_alone(const struct sk_buff *skb, const void *head);
struct sock *kopi_unless_chosen(struct sock *sk);
enum kopi_receives {
	/* The datagram that it was found for. */
	KOPI_RECEIVES_THIS,
	/* Those with the same addresses and ports. */
	KOPI_RECEIVES_SAME_ENDS,
	/* Those to the same address and port. */
	KOPI_RECEIVES_ALL,
};
enum kopi_receives kopi_sock_receives(const struct sock *sk);
bool kopi_sock_receives_plainly(const struct sock *sk, const void *data_ready);

/* shim/receive4.c */
bool kopi_has_input_hooks4(const struct net_device *dev);
u32 kopi_route_conf4(const struct net_device *dev);
void kopi_count_input4(const struct sk_buff *skb, const struct xdp_frame *frame);
bool kopi_route_here4(struct sk_buff *skb);
bool kopi_ask_input_hooks4(struct sk_buff *skb, struct dst_entry *known);
void kopi_input_by_stack4(struct sk_buff *skb);
bool kopi_is_datagram4(const struct sk_buff *skb);
struct sock *kopi_find_receiver4(struct sk_buff *skb);
void kopi_enter_udp4(struct sk_buff *skb);
int kopi_filter_datagram4(struct sock *sk, struct sk_buff *skb);

/* shim/receive6.c */
bool kopi_has_input_hooks6(const struct net_device *dev);
bool kopi_routes_by_destination6(const struct net_device *dev);
int kopi_routes_generation6(const struct net_device *dev);
u32 kopi_route_cookie6(const struct dst_entry *dst);
void kopi_use_route6(struct sk_buff *skb, struct dst_entry *dst);
bool kopi_is_input6(const struct net_device *dev, const struct ipv6hdr *ip6h);
void kopi_count_input6(const struct sk_buff *skb, const struct xdp_frame *frame);
bool kopi_route_here6(struct sk_buff *skb);
bool kopi_ask_input_hooks6(struct sk_buff *skb, struct dst_entry *known);
void kopi_input_by_stack6(struct sk_buff *skb);
bool kopi_is_datagram6(const struct sk_buff *skb);
struct sock *kopi_find_receiver6(struct sk_buff *skb);
void kopi_enter_udp6(struct sk_buff *skb);
int kopi_filter_datagram6(struct sock *sk, struct sk_buff *skb);

/* shim/dev.c */
int kopi_net_xmit_errno(int code);
bool kopi_device_name(struct net *net, int ifindex, char *name);
int kopi_net_find_dev(struct net *net, const struct net_device *sought, u32 most);
struct net *kopi_dev_net(const struct net_device *dev);
int kopi_dev_ifindex(const struct net_device *dev);
void kopi_dev_rx_dropped_inc(struct net_device *dev);
void kopi_dev_lstats_add(struct net_device *dev, unsigned int len);
bool kopi_dev_is_up(const struct net_device *dev);
bool kopi_dev_strips_vlans(const struct net_device *dev);
bool kopi_dev_has_gro(const struct net_device *dev);
bool kopi_dev_runs_xdp(const struct net_device *dev, const char *name);
void kopi_dev_put(struct net_device *dev);
bool kopi_dev_is_registered(const struct net_device *dev);
bool kopi_dev_is_ethernet(const struct net_device *dev);
bool kopi_dev_is_nic(struct net_device *dev);
bool kopi_dev_is_ready(const struct net_device *dev);
bool kopi_dev_has_xdp_xmit(const struct net_device *dev);
bool kopi_dev_has_tcx_egress(const struct net_device *dev);
unsigned int kopi_dev_real_num_tx_queues(const struct net_device *dev);
bool kopi_dev_has_classes(const struct net_device *dev);

/* shim/xdp_xmit.c */
bool kopi_dev_can_xdp_xmit(const struct net_device *dev);
bool kopi_dev_is_driven_by(const struct net_device *dev, const char *name);
bool kopi_dev_lacks_queues(const struct net_device *dev);
int kopi_dev_xdp_xmit(struct net_device *dev, int n, struct xdp_frame **frames, u32 flags);

/* shim/net.c */
u64 kopi_net_cookie(const struct net *net);
bool kopi_net_is_alive(const struct net *net);
struct user_namespace *kopi_net_user_ns(struct net *net);
bool kopi_ns_capable_net_admin(struct user_namespace *ns);
int kopi_register_pernet(void);
void kopi_unregister_pernet(void);
void **kopi_net_slot(const struct net *net);
pid_t kopi_net_show_pid(const struct net *net, struct pid *pid);
uid_t kopi_net_show_uid(const struct net *net, uid_t uid);
gid_t kopi_net_show_gid(const struct net *net, gid_t gid);
bool kopi_net_is_of_initial_users(const struct net *net);

/* shim/netlink.c */
int kopi_genl_register(void);
void kopi_genl_unregister(void);
int kopi_nl_dump_start(struct netlink_callback *cb);
struct sk_buff *kopi_genlmsg_new(gfp_t gfp);
void *kopi_genlmsg_put_reply(struct sk_buff *skb, struct genl_info *info, u8 cmd);
void *kopi_genlmsg_put_part(struct sk_buff *skb, struct netlink_callback *cb, u8 cmd);
void *kopi_genlmsg_put_event(struct sk_buff *skb, u8 cmd);
void kopi_genlmsg_end(struct sk_buff *skb, void *header);
void kopi_genlmsg_cancel(struct sk_buff *skb, void *header);
int kopi_genlmsg_reply(struct sk_buff *skb, struct genl_info *info);
int kopi_genlmsg_multicast(struct net *net, struct sk_buff *skb, gfp_t gfp);
bool kopi_genl_has_listeners(struct net *net);
void kopi_nlmsg_free(struct sk_buff *skb);
struct nlattr *kopi_nla_nest_start(struct sk_buff *skb, int type);
void kopi_nla_nest_end(struct sk_buff *skb, struct nlattr *nest);
struct nlattr *kopi_genl_first_attr(const struct genl_info *info, int *left);
bool kopi_nla_ok(const struct nlattr *attr, int left);
struct nlattr *kopi_nla_next(const struct nlattr *attr, int *left);
int kopi_nla_type(const struct nlattr *attr);
int kopi_nla_len(const struct nlattr *attr);
const void *kopi_nla_data(const struct nlattr *attr);
int kopi_parse_rule_input(struct nlattr **table, const struct nlattr *attr,
			  struct netlink_ext_ack *extack);
int kopi_parse_rule_named(struct nlattr **table, const struct nlattr *attr,
			  struct netlink_ext_ack *extack);
struct net *kopi_skb_net(const struct sk_buff *skb);
bool kopi_netlink_net_admin(const struct sk_buff *skb);
bool kopi_netlink_admin(const struct sk_buff *skb);
uid_t kopi_netlink_uid(const struct sk_buff *skb);
uid_t kopi_netlink_show_uid(const struct sk_buff *skb, uid_t uid);
gid_t kopi_netlink_show_gid(const struct sk_buff *skb, gid_t gid);
uid_t kopi_netlink_make_uid(const struct sk_buff *skb, uid_t uid);
gid_t kopi_netlink_make_gid(const struct sk_buff *skb, gid_t gid);

/* shim/mm.c */
void kopi_memcpy(void *to, const void *from, size_t len);
struct page *kopi_alloc_page(void);
pgprot_t kopi_page_kernel(void);
struct user_struct *kopi_get_current_user(void);
long kopi_user_locked_vm_read(struct user_struct *user);
bool kopi_user_locked_vm_try_cmpxchg(struct user_struct *user, long old, long new);
void kopi_user_locked_vm_sub(struct user_struct *user, long pages);
unsigned long kopi_rlimit_memlock(void);
void kopi_vm_flags_set_clear(struct vm_area_struct *vma, unsigned long set,
			     unsigned long clear);
int kopi_copy_struct_from_sockptr(void *to, size_t ksize, sockptr_t from, size_t usize);
bool kopi_copy_from_iter_nofault(void *to, size_t len, struct iov_iter *from);
unsigned long kopi_copy_to_user(void __user *to, const void *from, unsigned long size);
unsigned long kopi_copy_from_user(void *to, const void __user *from, unsigned long size);
struct kmem_cache *kopi_slab_create(const char *name, unsigned int size,
				    unsigned int align);
void *kopi_slab_alloc(struct kmem_cache *cache);
struct page *kopi_alloc_pages_nowait(unsigned int order);
void *kopi_page_address(const struct page *page);
int kopi_page_ref_count(const struct page *page);
void kopi_page_ref_add(struct page *page, int n);
void kopi_put_page(struct page *page);
unsigned int kopi_get_order(unsigned long size);
unsigned long kopi_page_size(struct page *page);

/* shim/task.c */
uid_t kopi_current_uid(void);
gid_t kopi_current_gid(void);
bool kopi_current_has_capabilities(void);
/* What rules know of a task's credentials; in the initial user namespace. */
struct kopi_ids {
	/* The effective ones. */
	u32 uid;
	u32 gid;
	bool has_capabilities;
};

struct kopi_ids kopi_ids_of(struct task_struct *task);
struct user_namespace *kopi_current_user_ns(void);
struct user_namespace *kopi_user_ns_parent(const struct user_namespace *ns);
uid_t kopi_user_ns_owner(const struct user_namespace *ns);
uid_t kopi_user_ns_root(struct user_namespace *ns);
bool kopi_signal_pending(void);
bool kopi_fatal_signal_pending(void);
struct pid *kopi_get_current_tgid(void);
bool kopi_current_is_secure(void);
bool kopi_current_has_other_ids(void);
uid_t kopi_current_euid(void);
gid_t kopi_current_egid(void);
void kopi_current_comm(char *comm);
const void *kopi_current_tgid(void);
u64 kopi_current_exec_id(void);
struct file *kopi_get_current_exe(void);
bool kopi_task_is_kernels(const struct task_struct *task);
void kopi_get_pid(struct pid *pid);
struct pid *kopi_get_tgid_of(struct task_struct *task);
void kopi_comm_of(struct task_struct *task, char *comm);
struct file *kopi_get_exe_of(struct task_struct *task);
struct task_struct *kopi_pid_task(struct pid *pid);
bool kopi_task_exiting(const struct task_struct *task);
u64 kopi_task_exec_id(const struct task_struct *task);
const struct cred *kopi_override_creds(const struct cred *cred);
void kopi_revert_creds(const struct cred *cred);
const struct cred *kopi_current_cred(void);
const struct cred *kopi_get_current_cred(void);
void kopi_put_cred(const struct cred *cred);
u32 kopi_inode_device(const struct inode *inode);
u64 kopi_inode_number(const struct inode *inode);
u32 kopi_inode_generation(const struct inode *inode);
bool kopi_inode_is_regular(const struct inode *inode);
const struct path *kopi_file_path(const struct file *file);
struct inode *kopi_path_inode(const struct path *path);
struct inode *kopi_path_layer_inode(const struct path *path);
struct cgroup *kopi_sk_cgroup(struct sock *sk);
struct cgroup *kopi_sk_cgroup_get(struct sock *sk);
u64 kopi_sk_cgroup_id_at(struct sock *sk, u32 level);
u32 kopi_cgroup_level(const struct cgroup *cgroup);
u64 kopi_cgroup_id(const struct cgroup *cgroup);
int kopi_cgroup_path_here(struct cgroup *cgroup, char *path, size_t size);
void kopi_cgroup_put(struct cgroup *cgroup);
bool kopi_is_current(const void *task);
const void *kopi_current(void);

/* shim/sync.c */
void kopi_local_bh_disable(void);
void kopi_local_bh_enable(void);
unsigned long kopi_lock_irq_save(void);
void kopi_lock_irq_restore(unsigned long flags);
void kopi_cond_resched(void);
void kopi_cond_resched_tasks_rcu_qs(void);
void kopi_smp_mb(void);
bool kopi_cpu_online(unsigned int cpu);
u64 kopi_ktime_get_ns(void);
u64 kopi_rx_softirq_run(void);
unsigned long kopi_jiffies(void);
void kopi_poll_wait(struct file *file, wait_queue_head_t *queue, poll_table *table);
bool kopi_wq_has_sleeper(wait_queue_head_t *queue);
void kopi_init_waitqueue_head(wait_queue_head_t *queue);
void kopi_init_wait_entry_func(struct wait_queue_entry *entry, wait_queue_func_t func);
void kopi_wait_entry_leave(struct wait_queue_entry *entry);
struct workqueue_struct *kopi_alloc_workqueue(void);
void kopi_synchronize_rcu_tasks(void);
void kopi_init_delayed_work(struct delayed_work *work, work_func_t func);
void kopi_queue_delayed_work(struct workqueue_struct *queue,
			     struct delayed_work *work, unsigned long delay);
bool kopi_irqs_disabled(void);
struct kopi_timer {
	struct hrtimer hrtimer;
	void (*expired)(void *timer);
};

void kopi_timer_setup(struct kopi_timer *timer, void (*expired)(void *timer));
void kopi_timer_start(struct kopi_timer *timer, u64 ns);
void kopi_timer_cancel(struct kopi_timer *timer);

/* shim/read.c */
/* What rules want to know of a datagram that waits. */
struct kopi_first {
	/* Or a sockaddr_in. */
	struct sockaddr_in6 source;
	unsigned int len;
	/* 0 unless it is a GRO packet. */
	unsigned int gso_size;
	bool is_mapped;
};

int kopi_udp_peek(struct sock *sk, struct kopi_first *first);
int kopi_recv_path_mtu(struct sock *sk, struct msghdr *msg, size_t len);

/* shim/mirror.c */
bool kopi_try_lock_sock(struct sock *sk);
void kopi_sk_busy_loop(struct sock *sk, bool (*loop_end)(void *, unsigned long), void *arg);
struct sk_buff *kopi_udp_read_skb(struct sock *sk, u32 *left);
void kopi_udp_drop_peeked(struct sock *sk, struct sk_buff *skb);
int kopi_udp_sendmsg(struct sock *sk, struct msghdr *msg, size_t len);
const struct net_device *kopi_net_dev(struct net *net, int ifindex);
void kopi_skb_set_udp_gro(struct sk_buff *skb, unsigned int udp, u16 size, u16 segs);
bool kopi_dev_fits_mtu(const struct net_device *dev, unsigned int len);
bool kopi_txq_can_bypass(struct net_device *dev, unsigned int index);
void kopi_qdisc_bstats_add(struct net_device *dev, unsigned int index, u32 bytes, u32 packets);
void kopi_qdisc_bstats_update(struct net_device *dev, unsigned int index, struct sk_buff *skb);

/* shim/local_out.c */
/* A packet, or a GSO packet, that a flow or an ordinary socket sends. */
struct kopi_sent {
	struct in6_addr to;
	/* The first hop of a source route; otherwise the same as above. */
	struct in6_addr via;
	u16 port;
	u16 from_port;
	u16 gso_size;
	u32 bytes;
	u32 mark;
	u32 priority;
	/* It was judged, and counted, before. */
	bool counted_before;
	/* It is a RST. */
	bool is_reset;
};

int kopi_hook_local_out(struct net *net);
void kopi_unhook_local_out(struct net *net);

/* shim/ordinary.c */
/* What is known of an ordinary sock: the head of Rust's structure. */
struct kopi_known {
	struct rhash_head node;
	const struct sock *sk;
	struct rcu_head rcu;
};

/* The system calls that are asked about. */
enum kopi_call {
	KOPI_CALL_BIND,
	KOPI_CALL_CONNECT,
	KOPI_CALL_LISTEN,
	KOPI_CALL_ACCEPT,
	KOPI_CALL_SEND,
	KOPI_CALL_RECEIVE,
};

int kopi_known_init(void);
void kopi_known_destroy(void (*free)(struct kopi_known *entry));
int kopi_known_insert(struct kopi_known *entry);
struct kopi_known *kopi_known_find(const struct sock *sk);
bool kopi_known_remove(struct kopi_known *entry);
void kopi_known_clear(bool (*is_wanted)(const struct kopi_known *entry), void (*free)(struct kopi_known *entry));
bool kopi_known_is_empty(void);
u64 kopi_sock_cookie(struct sock *sk);
struct sock *kopi_subflow_owner(struct sock *sk);
bool kopi_skb_sender(const struct sk_buff *skb, struct in6_addr *address, u16 *port);
int kopi_lsm_is_there(struct net *net);
bool kopi_call_is_kernels(struct socket *sock);
int kopi_ordinary_register(void);

/* shim/netdev.c */
int kopi_netdev_register(void);
void kopi_netdev_unregister(void);
bool kopi_egress_is_last(const struct net_device *dev, const void *hook);

/* shim/trace.c */
struct tracepoint *kopi_tracepoint_start_xmit(void);
int kopi_probe_start_xmit(struct tracepoint *tp);
void kopi_unprobe_start_xmit(struct tracepoint *tp);
struct tracepoint *kopi_tracepoint_tcp_probe(void);
int kopi_probe_tcp(struct tracepoint *tp);
void kopi_unprobe_tcp(struct tracepoint *tp);
int kopi_probe_kfree_skb(void);
void kopi_unprobe_kfree_skb(void);
void kopi_tracepoint_synchronize_unregister(void);

/* shim/kopimon.c */
int kopi_mon_register(void);
void kopi_mon_unregister(void);
void kopi_mon_unprobe_later(void);
void kopi_mon_cancel_unprobe(void);
bool kopi_mon_is(const struct net_device *dev);

/* shim/kopirx.c */
struct net_device *kopi_redirect_new(struct net *net, void *receiver);
void kopi_redirect_came_up(const struct net_device *dev);
bool kopi_redirect_is(const struct net_device *dev);

/* Rust functions that the C above calls. */
int kopi_net_init(struct net *net);
void kopi_net_pre_exit(struct net *net);
void kopi_net_exit(struct net *net);
int kopi_local_out(struct sock *sk, struct kopi_sent *sent);
bool kopi_ordinary_are_judged(struct net *net);
int kopi_ordinary_calls(struct sock *sk, enum kopi_call call, const void *address, int len);
int kopi_ordinary_gets(struct sock *sk, struct sk_buff *skb);
void kopi_ordinary_clones(struct sock *sk, struct sock *newsk);
void kopi_ordinary_adds(struct sock *sk, struct sock *subflow);
void kopi_ordinary_ends(const struct sock *sk);
void kopi_ordinary_found(struct sock *sk, struct task_struct *task);
void kopi_device_going(struct net_device *dev);
void kopi_device_changed(struct net_device *dev);
void kopi_device_down(struct net_device *dev);
void kopi_on_start_xmit(struct sk_buff *skb, struct net_device *dev);
void kopi_on_kfree_skb(struct sk_buff *skb, unsigned int reason, struct sock *rx_sk);
void kopi_on_tcp_probe(struct sock *sk, struct sk_buff *skb);
int kopi_mon_open(struct net_device *dev);
int kopi_mon_stop(struct net_device *dev);
void kopi_mon_unprobe(struct work_struct *work);
void kopi_redirect_up(void *receiver);
void kopi_redirect_stop(void *receiver);
int kopi_redirect_xmit(void *receiver, int n, struct xdp_frame **frames, u32 flags);

#endif /* _KOPI_SHIM_H */
