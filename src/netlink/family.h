/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause) */
/* Do not edit directly, auto-generated from: */
/*	uapi/kopi.yaml */
/* YNL-GEN kernel header */
/* To regenerate run: qemu/netlink */

#ifndef _LINUX_KOPI_GEN_H
#define _LINUX_KOPI_GEN_H

#include <net/netlink.h>
#include <net/genetlink.h>

#include <uapi/kopi_netlink.h>

/* Common nested types */
extern const struct nla_policy kopi_rule_input_nl_policy[KOPI_A_RULE_WEIGHT + 1];
extern const struct nla_policy kopi_rule_named_nl_policy[KOPI_A_RULE_HANDLE + 1];

int kopi_nl_dump_start(struct netlink_callback *cb);

int kopi_nl_info_get_doit(struct sk_buff *skb, struct genl_info *info);
int kopi_nl_flow_get_doit(struct sk_buff *skb, struct genl_info *info);
int kopi_nl_flow_get_dumpit(struct sk_buff *skb, struct netlink_callback *cb);
int kopi_nl_channel_get_doit(struct sk_buff *skb, struct genl_info *info);
int kopi_nl_channel_get_dumpit(struct sk_buff *skb,
			       struct netlink_callback *cb);
int kopi_nl_totals_get_doit(struct sk_buff *skb, struct genl_info *info);
int kopi_nl_rule_get_dumpit(struct sk_buff *skb, struct netlink_callback *cb);
int kopi_nl_rule_add_doit(struct sk_buff *skb, struct genl_info *info);
int kopi_nl_rule_del_doit(struct sk_buff *skb, struct genl_info *info);
int kopi_nl_ruleset_get_doit(struct sk_buff *skb, struct genl_info *info);
int kopi_nl_ruleset_set_doit(struct sk_buff *skb, struct genl_info *info);
int kopi_nl_engine_get_dumpit(struct sk_buff *skb, struct netlink_callback *cb);
int kopi_nl_engine_set_doit(struct sk_buff *skb, struct genl_info *info);
int kopi_nl_device_get_dumpit(struct sk_buff *skb, struct netlink_callback *cb);
int kopi_nl_device_attach_doit(struct sk_buff *skb, struct genl_info *info);
int kopi_nl_device_detach_doit(struct sk_buff *skb, struct genl_info *info);

enum {
	KOPI_NLGRP_EVENTS,
};

extern struct genl_family kopi_nl_family;

#endif /* _LINUX_KOPI_GEN_H */
