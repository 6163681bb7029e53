// SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause)
/* Do not edit directly, auto-generated from: */
/*	uapi/kopi.yaml */
/* YNL-GEN kernel source */
/* To regenerate run: qemu/netlink */

#include <net/netlink.h>
#include <net/genetlink.h>

#include "family.h"

#include <uapi/kopi_netlink.h>

/* Integer value ranges */
static const struct netlink_range_validation kopi_a_engines_idle_range = {
	.max	= 3600000000ULL,
};

static const struct netlink_range_validation kopi_a_engines_budget_range = {
	.min	= 1024ULL,
	.max	= 16777216ULL,
};

/* Common nested types */
const struct nla_policy kopi_rule_input_nl_policy[KOPI_A_RULE_WEIGHT + 1] = {
	[KOPI_A_RULE_BEFORE] = NLA_POLICY_MIN(NLA_U32, 1),
	[KOPI_A_RULE_UID_MIN] = { .type = NLA_U32, },
	[KOPI_A_RULE_UID_MAX] = { .type = NLA_U32, },
	[KOPI_A_RULE_GID] = { .type = NLA_U32, },
	[KOPI_A_RULE_CGROUP_PATH] = { .type = NLA_NUL_STRING, .len = KOPI_FILE_PATH_MAX, },
	[KOPI_A_RULE_EXE] = { .type = NLA_NUL_STRING, .len = KOPI_FILE_PATH_MAX, },
	[KOPI_A_RULE_PROTOCOL] = { .type = NLA_U8, },
	[KOPI_A_RULE_LOCAL_PORT_MIN] = { .type = NLA_U16, },
	[KOPI_A_RULE_LOCAL_PORT_MAX] = { .type = NLA_U16, },
	[KOPI_A_RULE_REMOTE_ADDRESS] = NLA_POLICY_MAX_LEN(16),
	[KOPI_A_RULE_REMOTE_PREFIX] = NLA_POLICY_MAX(NLA_U8, 128),
	[KOPI_A_RULE_REMOTE_PORT_MIN] = { .type = NLA_U16, },
	[KOPI_A_RULE_REMOTE_PORT_MAX] = { .type = NLA_U16, },
	[KOPI_A_RULE_DEVICE] = { .type = NLA_NUL_STRING, .len = KOPI_DEVICE_MAX, },
	[KOPI_A_RULE_DIRECTION] = NLA_POLICY_MASK(NLA_U32, 0x3),
	[KOPI_A_RULE_VERDICT] = NLA_POLICY_MAX(NLA_U32, 1),
	[KOPI_A_RULE_MARK] = { .type = NLA_U32, },
	[KOPI_A_RULE_PRIORITY] = { .type = NLA_U32, },
	[KOPI_A_RULE_RATE_BYTES] = { .type = NLA_UINT, },
	[KOPI_A_RULE_RATE_PACKETS] = { .type = NLA_UINT, },
	[KOPI_A_RULE_BURST] = { .type = NLA_UINT, },
	[KOPI_A_RULE_SHARED] = { .type = NLA_FLAG, },
	[KOPI_A_RULE_COMMENT] = { .type = NLA_NUL_STRING, .len = 255, },
	[KOPI_A_RULE_WEIGHT] = NLA_POLICY_RANGE(NLA_U32, 1, 1000),
};

const struct nla_policy kopi_rule_named_nl_policy[KOPI_A_RULE_HANDLE + 1] = {
	[KOPI_A_RULE_HANDLE] = NLA_POLICY_MIN(NLA_U32, 1),
};

/* KOPI_CMD_FLOW_GET - do */
static const struct nla_policy kopi_flow_get_nl_policy[KOPI_A_FLOW_ID + 1] = {
	[KOPI_A_FLOW_ID] = NLA_POLICY_MIN(NLA_U32, 1),
};

/* KOPI_CMD_CHANNEL_GET - do */
static const struct nla_policy kopi_channel_get_nl_policy[KOPI_A_CHANNEL_ID + 1] = {
	[KOPI_A_CHANNEL_ID] = NLA_POLICY_MIN(NLA_U32, 1),
};

/* KOPI_CMD_RULE_ADD - do */
static const struct nla_policy kopi_rule_add_nl_policy[KOPI_A_RULESET_RULE + 1] = {
	[KOPI_A_RULESET_RULE] = NLA_POLICY_NESTED(kopi_rule_input_nl_policy),
};

/* KOPI_CMD_RULE_DEL - do */
static const struct nla_policy kopi_rule_del_nl_policy[KOPI_A_RULESET_RULE + 1] = {
	[KOPI_A_RULESET_RULE] = NLA_POLICY_NESTED(kopi_rule_named_nl_policy),
};

/* KOPI_CMD_RULESET_SET - do */
static const struct nla_policy kopi_ruleset_set_nl_policy[KOPI_A_RULESET_KEEP + 1] = {
	[KOPI_A_RULESET_DEFAULT] = NLA_POLICY_MAX(NLA_U32, 1),
	[KOPI_A_RULESET_RULE] = NLA_POLICY_NESTED(kopi_rule_input_nl_policy),
	[KOPI_A_RULESET_GENERATION] = { .type = NLA_UINT, },
	[KOPI_A_RULESET_CHECK] = { .type = NLA_FLAG, },
	[KOPI_A_RULESET_ENFORCE] = NLA_POLICY_MAX(NLA_U32, 1),
	[KOPI_A_RULESET_KEEP] = { .type = NLA_FLAG, },
};

/* KOPI_CMD_ENGINE_SET - do */
static const struct nla_policy kopi_engine_set_nl_policy[KOPI_A_ENGINES_BUDGET + 1] = {
	[KOPI_A_ENGINES_CPU] = { .type = NLA_U32, },
	[KOPI_A_ENGINES_IDLE] = NLA_POLICY_FULL_RANGE(NLA_UINT, &kopi_a_engines_idle_range),
	[KOPI_A_ENGINES_BUDGET] = NLA_POLICY_FULL_RANGE(NLA_U32, &kopi_a_engines_budget_range),
};

/* KOPI_CMD_DEVICE_ATTACH - do */
static const struct nla_policy kopi_device_attach_nl_policy[KOPI_A_DEVICE_PORT_MAP + 1] = {
	[KOPI_A_DEVICE_IFINDEX] = NLA_POLICY_MIN(NLA_U32, 1),
	[KOPI_A_DEVICE_PORT_MAP] = { .type = NLA_UINT, },
};

/* KOPI_CMD_DEVICE_DETACH - do */
static const struct nla_policy kopi_device_detach_nl_policy[KOPI_A_DEVICE_IFINDEX + 1] = {
	[KOPI_A_DEVICE_IFINDEX] = NLA_POLICY_MIN(NLA_U32, 1),
};

/* Ops table for kopi */
static const struct genl_split_ops kopi_nl_ops[] = {
	{
		.cmd	= KOPI_CMD_INFO_GET,
		.doit	= kopi_nl_info_get_doit,
		.flags	= GENL_CMD_CAP_DO,
	},
	{
		.cmd		= KOPI_CMD_FLOW_GET,
		.doit		= kopi_nl_flow_get_doit,
		.policy		= kopi_flow_get_nl_policy,
		.maxattr	= KOPI_A_FLOW_ID,
		.flags		= GENL_CMD_CAP_DO,
	},
	{
		.cmd	= KOPI_CMD_FLOW_GET,
		.start	= kopi_nl_dump_start,
		.dumpit	= kopi_nl_flow_get_dumpit,
		.flags	= GENL_CMD_CAP_DUMP,
	},
	{
		.cmd		= KOPI_CMD_CHANNEL_GET,
		.doit		= kopi_nl_channel_get_doit,
		.policy		= kopi_channel_get_nl_policy,
		.maxattr	= KOPI_A_CHANNEL_ID,
		.flags		= GENL_CMD_CAP_DO,
	},
	{
		.cmd	= KOPI_CMD_CHANNEL_GET,
		.dumpit	= kopi_nl_channel_get_dumpit,
		.flags	= GENL_CMD_CAP_DUMP,
	},
	{
		.cmd	= KOPI_CMD_TOTALS_GET,
		.doit	= kopi_nl_totals_get_doit,
		.flags	= GENL_UNS_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
	{
		.cmd	= KOPI_CMD_RULE_GET,
		.start	= kopi_nl_dump_start,
		.dumpit	= kopi_nl_rule_get_dumpit,
		.flags	= GENL_UNS_ADMIN_PERM | GENL_CMD_CAP_DUMP,
	},
	{
		.cmd		= KOPI_CMD_RULE_ADD,
		.doit		= kopi_nl_rule_add_doit,
		.policy		= kopi_rule_add_nl_policy,
		.maxattr	= KOPI_A_RULESET_RULE,
		.flags		= GENL_UNS_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
	{
		.cmd		= KOPI_CMD_RULE_DEL,
		.doit		= kopi_nl_rule_del_doit,
		.policy		= kopi_rule_del_nl_policy,
		.maxattr	= KOPI_A_RULESET_RULE,
		.flags		= GENL_UNS_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
	{
		.cmd	= KOPI_CMD_RULESET_GET,
		.doit	= kopi_nl_ruleset_get_doit,
		.flags	= GENL_UNS_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
	{
		.cmd		= KOPI_CMD_RULESET_SET,
		.doit		= kopi_nl_ruleset_set_doit,
		.policy		= kopi_ruleset_set_nl_policy,
		.maxattr	= KOPI_A_RULESET_KEEP,
		.flags		= GENL_UNS_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
	{
		.cmd	= KOPI_CMD_ENGINE_GET,
		.dumpit	= kopi_nl_engine_get_dumpit,
		.flags	= GENL_ADMIN_PERM | GENL_CMD_CAP_DUMP,
	},
	{
		.cmd		= KOPI_CMD_ENGINE_SET,
		.doit		= kopi_nl_engine_set_doit,
		.policy		= kopi_engine_set_nl_policy,
		.maxattr	= KOPI_A_ENGINES_BUDGET,
		.flags		= GENL_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
	{
		.cmd	= KOPI_CMD_DEVICE_GET,
		.dumpit	= kopi_nl_device_get_dumpit,
		.flags	= GENL_UNS_ADMIN_PERM | GENL_CMD_CAP_DUMP,
	},
	{
		.cmd		= KOPI_CMD_DEVICE_ATTACH,
		.doit		= kopi_nl_device_attach_doit,
		.policy		= kopi_device_attach_nl_policy,
		.maxattr	= KOPI_A_DEVICE_PORT_MAP,
		.flags		= GENL_UNS_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
	{
		.cmd		= KOPI_CMD_DEVICE_DETACH,
		.doit		= kopi_nl_device_detach_doit,
		.policy		= kopi_device_detach_nl_policy,
		.maxattr	= KOPI_A_DEVICE_IFINDEX,
		.flags		= GENL_UNS_ADMIN_PERM | GENL_CMD_CAP_DO,
	},
};

static const struct genl_multicast_group kopi_nl_mcgrps[] = {
	[KOPI_NLGRP_EVENTS] = { "events", },
};

struct genl_family kopi_nl_family __ro_after_init = {
	.name		= KOPI_FAMILY_NAME,
	.version	= KOPI_FAMILY_VERSION,
	.netnsok	= true,
	.parallel_ops	= true,
	.module		= THIS_MODULE,
	.split_ops	= kopi_nl_ops,
	.n_split_ops	= ARRAY_SIZE(kopi_nl_ops),
	.mcgrps		= kopi_nl_mcgrps,
	.n_mcgrps	= ARRAY_SIZE(kopi_nl_mcgrps),
};
