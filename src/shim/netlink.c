// SPDX-License-Identifier: GPL-2.0
/* The netlink family, its messages and attributes. */

#include <linux/capability.h>
#include <linux/cred.h>
#include <net/genetlink.h>
#include <net/sock.h>

#include "../netlink/family.h"
#include "../shim.h"

/* Room for a flow, or a rule, with paths of maximum length. */
#define KOPI_MESSAGE_MAX	(3 * PATH_MAX)

/* The spec can't say which privilege joining a group needs. */
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
	return genlmsg_new(KOPI_MESSAGE_MAX, gfp);
}

/* A dump's first buffer has room for any message: one that fits into none would end the dump. */
int kopi_nl_dump_start(struct netlink_callback *cb)
{
	cb->min_dump_alloc = KOPI_MESSAGE_MAX;
	return 0;
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

/* `RuleInput` and `RuleNamed` in src/sys/genl/request.rs have an entry for each type. */
static_assert(ARRAY_SIZE(kopi_rule_input_nl_policy) == KOPI_A_RULE_WEIGHT + 1);
static_assert(ARRAY_SIZE(kopi_rule_named_nl_policy) == KOPI_A_RULE_HANDLE + 1);

int kopi_parse_rule_input(struct nlattr **table, const struct nlattr *attr,
			  struct netlink_ext_ack *extack)
{
	return nla_parse_nested(table, ARRAY_SIZE(kopi_rule_input_nl_policy) - 1, attr,
				kopi_rule_input_nl_policy, extack);
}

int kopi_parse_rule_named(struct nlattr **table, const struct nlattr *attr,
			  struct netlink_ext_ack *extack)
{
	return nla_parse_nested(table, ARRAY_SIZE(kopi_rule_named_nl_policy) - 1, attr,
				kopi_rule_named_nl_policy, extack);
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
