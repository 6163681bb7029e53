// SPDX-License-Identifier: GPL-2.0
/* Network namespaces, and KOPI's state of each. */

#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/pid_namespace.h>
#include <linux/rtnetlink.h>
#include <net/ip.h>
#include <net/netns/generic.h>
#include <net/sock.h>
#include <net/udp.h>

#include "../shim.h"

u64 kopi_net_cookie(const struct net *net)
{
	return net->net_cookie;
}

struct user_namespace *kopi_net_user_ns(struct net *net)
{
	return net->user_ns;
}

bool kopi_ns_capable_net_admin(struct user_namespace *ns)
{
	return ns_capable(ns, CAP_NET_ADMIN);
}

static unsigned int net_id;

static struct pernet_operations net_ops = {
	.init = kopi_net_init,
	.pre_exit = kopi_net_pre_exit,
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
	struct net *net;

	unregister_pernet_subsys(&net_ops);
	/* A packet that was queued behind a hook may still be on its way. */
	synchronize_rcu();
	/* That way may have ended in a queue again: its answer was looked at when the queues were emptied. */
	down_read(&net_rwsem);
	for_each_net(net)
		kopi_drop_queued(net);
	up_read(&net_rwsem);
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

bool kopi_net_is_of_initial_users(const struct net *net)
{
	return net->user_ns == &init_user_ns;
}

/*
 * Whether its end hasn't begun. cleanup_net() waits for RCU between that and the exit functions: what was alive
 * in an RCU read-side section has its state until the section ends.
 */
bool kopi_net_is_alive(const struct net *net)
{
	return check_net(net);
}
