// SPDX-License-Identifier: GPL-2.0
/*
 * Ask the module about ordinary sockets: whether a system call may be made, a packet may come. The module
 * decides; all that is here is the hooks of BPF's LSM, which stock kernels let programs have. A program that
 * was asked before and refused is not overruled.
 */

#include <linux/bpf.h>
#include <linux/errno.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* The kernel's, which are only passed on. */
struct msghdr {};
struct sk_buff {};
struct sock {};
struct sockaddr {};
struct socket {};

/* Of which only this is read, wherever this kernel has it. */
struct task_struct {
	int pid;
} __attribute__((preserve_access_index));

/* Each field has 8 bytes, as __bpf_md_ptr makes it. */
struct bpf_iter__task_file {
	__u64 meta;
	struct task_struct *task;
	__u32 fd;
	__u32 padding;
	__u64 file;
};

/* The module's functions. */
int kopi_lsm_socket_bind(struct socket *sock, struct sockaddr *address, int addrlen) __ksym;
int kopi_lsm_socket_connect(struct socket *sock, struct sockaddr *address, int addrlen) __ksym;
int kopi_lsm_socket_listen(struct socket *sock) __ksym;
int kopi_lsm_socket_accept(struct socket *sock) __ksym;
int kopi_lsm_socket_sendmsg(struct socket *sock, struct msghdr *msg) __ksym;
int kopi_lsm_socket_recvmsg(struct socket *sock) __ksym;
int kopi_lsm_sock_rcv_skb(struct sock *sk, struct sk_buff *skb) __ksym;
void kopi_lsm_sk_clone(const struct sock *sk, struct sock *newsk) __ksym;
void kopi_lsm_mptcp_add_subflow(struct sock *sk, struct sock *ssk) __ksym;
void kopi_lsm_sk_free(__u64 sk) __ksym;
void kopi_iter_task_file(int tid, unsigned int fd) __ksym;

/* The kernel has to know that a result is an errno of one of these. */
static __always_inline int refusal(int result)
{
	if (!result)
		return 0;
	return result == -ENOMEM ? -ENOMEM : -EACCES;
}

SEC("lsm.s/socket_bind")
int BPF_PROG(kopi_bind, struct socket *sock, struct sockaddr *address, int addrlen, int before)
{
	return before ?: refusal(kopi_lsm_socket_bind(sock, address, addrlen));
}

SEC("lsm.s/socket_connect")
int BPF_PROG(kopi_connect, struct socket *sock, struct sockaddr *address, int addrlen, int before)
{
	return before ?: refusal(kopi_lsm_socket_connect(sock, address, addrlen));
}

SEC("lsm.s/socket_listen")
int BPF_PROG(kopi_listen, struct socket *sock, int backlog, int before)
{
	return before ?: refusal(kopi_lsm_socket_listen(sock));
}

SEC("lsm.s/socket_accept")
int BPF_PROG(kopi_accept, struct socket *sock, struct socket *newsock, int before)
{
	return before ?: refusal(kopi_lsm_socket_accept(sock));
}

SEC("lsm.s/socket_sendmsg")
int BPF_PROG(kopi_sendmsg, struct socket *sock, struct msghdr *msg, int size, int before)
{
	return before ?: refusal(kopi_lsm_socket_sendmsg(sock, msg));
}

SEC("lsm.s/socket_recvmsg")
int BPF_PROG(kopi_recvmsg, struct socket *sock, struct msghdr *msg, int size, int flags, int before)
{
	return before ?: refusal(kopi_lsm_socket_recvmsg(sock));
}

SEC("lsm/socket_sock_rcv_skb")
int BPF_PROG(kopi_rcv_skb, struct sock *sk, struct sk_buff *skb, int before)
{
	return before ?: refusal(kopi_lsm_sock_rcv_skb(sk, skb));
}

SEC("lsm/sk_clone_security")
int BPF_PROG(kopi_sk_clone, const struct sock *sk, struct sock *newsk)
{
	kopi_lsm_sk_clone(sk, newsk);
	return 0;
}

SEC("lsm/mptcp_add_subflow")
int BPF_PROG(kopi_add_subflow, struct sock *sk, struct sock *ssk, int before)
{
	if (!before)
		kopi_lsm_mptcp_add_subflow(sk, ssk);
	return before;
}

SEC("lsm/sk_free_security")
int kopi_sk_free(__u64 *ctx)
{
	__u64 sk;

	if (!bpf_get_func_arg(ctx, 0, &sk))
		kopi_lsm_sk_free(sk);
	return 0;
}

/* All sockets that are open when the rules begin to be enforced. */
SEC("iter/task_file")
int kopi_found(struct bpf_iter__task_file *ctx)
{
	/* None after the last one. */
	if (ctx->task)
		kopi_iter_task_file(ctx->task->pid, ctx->fd);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
