// SPDX-License-Identifier: GPL-2.0
/*
 * Processes: users, credentials, files, cgroups. Besides helpers: whether a process was given ids or
 * capabilities by its file, or has others than its own.
 */

#include <linux/cgroup.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kdev_t.h>
#include <linux/nsproxy.h>
#include <linux/path.h>
#include <linux/pid_namespace.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <net/sock.h>

#include "../shim.h"

uid_t kopi_current_uid(void)
{
	return from_kuid(&init_user_ns, current_uid());
}

struct user_namespace *kopi_current_user_ns(void)
{
	return current_user_ns();
}

struct user_namespace *kopi_user_ns_parent(const struct user_namespace *ns)
{
	return ns->parent;
}

uid_t kopi_user_ns_owner(const struct user_namespace *ns)
{
	return from_kuid(&init_user_ns, ns->owner);
}

uid_t kopi_user_ns_root(struct user_namespace *ns)
{
	return from_kuid(&init_user_ns, make_kuid(ns, 0));
}

bool kopi_signal_pending(void)
{
	return signal_pending(current);
}

bool kopi_fatal_signal_pending(void)
{
	return fatal_signal_pending(current);
}

struct pid *kopi_get_current_tgid(void)
{
	return get_pid(task_tgid(current));
}

/* Whether the current program is a 32-bit one, by whatever system call it comes. */
static bool has_compat_auxv(void)
{
#ifdef CONFIG_X86_64
	return test_thread_flag(TIF_ADDR32);
#else
	return in_compat_syscall();
#endif
}

/*
 * Whether the current process was started from a file that gave it a user, a group or capabilities that who started it
 * didn't have: AT_SECURE, create_elf_tables() (fs/binfmt_elf.c), which a 32-bit program has in smaller words. A process
 * can change it (PR_SET_MM_MAP).
 */
bool kopi_current_is_secure(void)
{
	const struct mm_struct *mm = current->mm;
	const u32 *words = mm ? (const u32 *)mm->saved_auxv : NULL;
	const unsigned int size = has_compat_auxv() ? 1 : sizeof(mm->saved_auxv[0]) / sizeof(*words);
	const unsigned int count = mm ? sizeof(mm->saved_auxv) / (sizeof(*words) * size) : 0;

	for (unsigned int at = 0; at + 1 < count && words[at * size] != AT_NULL; at += 2)
		if (words[at * size] == AT_SECURE)
			return words[(at + 1) * size];
	return false;
}

gid_t kopi_current_gid(void)
{
	return from_kgid(&init_user_ns, current_gid());
}

static bool has_capabilities(const struct cred *cred)
{
	return cred->user_ns == &init_user_ns && !cap_isclear(cred->cap_permitted);
}

bool kopi_current_has_capabilities(void)
{
	return has_capabilities(current_cred());
}

/* Of one set of a task's credentials. In an RCU read-side section. */
struct kopi_ids kopi_ids_of(struct task_struct *task)
{
	const struct cred *cred = __task_cred(task);
	struct kopi_ids ids = {
		.uid = from_kuid(&init_user_ns, cred->euid),
		.gid = from_kgid(&init_user_ns, cred->egid),
		.has_capabilities = has_capabilities(cred),
	};

	/* exec() counts the program before it changes the credentials: who looks at the count after this sees that. */
	smp_rmb();
	return ids;
}

/* Whether a user has a group in any case: then he can make a set-group-ID copy of any program. */
static bool has_group(const struct cred *cred, kgid_t gid)
{
	const struct group_info *groups = cred->group_info;

	if (gid_eq(gid, cred->gid))
		return true;
	for (int at = 0; at < groups->ngroups; at++)
		if (gid_eq(gid, groups->gid[at]))
			return true;
	return false;
}

/*
 * Whether the current process has, or can take again, ids that its user hasn't, or has capabilities: so it is with
 * programs whose file gave them these, unless they have put them away for ever.
 */
bool kopi_current_has_other_ids(void)
{
	const struct cred *cred = current_cred();

	return !uid_eq(cred->euid, cred->uid) || !uid_eq(cred->suid, cred->uid) ||
	       !has_group(cred, cred->egid) || !has_group(cred, cred->sgid) || has_capabilities(cred);
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

bool kopi_task_is_kernels(const struct task_struct *task)
{
	return task->flags & PF_KTHREAD;
}

void kopi_get_pid(struct pid *pid)
{
	get_pid(pid);
}

struct pid *kopi_get_tgid_of(struct task_struct *task)
{
	return get_pid(task_tgid(task));
}

void kopi_comm_of(struct task_struct *task, char *comm)
{
	strscpy_pad(comm, task->group_leader->comm, TASK_COMM_LEN);
}

/* As get_task_exe_file() (kernel/fork.c, 7.3.4), which isn't exported. */
struct file *kopi_get_exe_of(struct task_struct *task)
{
	struct file *file = NULL;

	task_lock(task);
	if (task->mm && !(task->flags & PF_KTHREAD))
		file = get_file_active(&task->mm->exe_file);
	task_unlock(task);
	return file;
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

bool kopi_inode_is_regular(const struct inode *inode)
{
	return S_ISREG(inode->i_mode);
}

const struct path *kopi_file_path(const struct file *file)
{
	return &file->f_path;
}

struct inode *kopi_path_inode(const struct path *path)
{
	return d_backing_inode(path->dentry);
}

/* The inode that an overlay's file has in its layer; that of the file itself on other file systems. */
struct inode *kopi_path_layer_inode(const struct path *path)
{
	return d_backing_inode(d_real(path->dentry, D_REAL_METADATA));
}

struct cgroup *kopi_sk_cgroup(struct sock *sk)
{
	return sock_cgroup_ptr(&sk->sk_cgrp_data);
}

struct cgroup *kopi_sk_cgroup_get(struct sock *sk)
{
	struct cgroup *cgroup = sock_cgroup_ptr(&sk->sk_cgrp_data);

	cgroup_get(cgroup);
	return cgroup;
}

/*
 * The id of the ancestor at a level of a socket's cgroup, which may be the cgroup itself; 0 if
 * there is none.
 */
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

bool kopi_is_current(const void *task)
{
	return current == task;
}

const void *kopi_current(void)
{
	return current;
}
