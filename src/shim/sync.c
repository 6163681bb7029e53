// SPDX-License-Identifier: GPL-2.0
/* Contexts, waiting, work and timers. */

#include <linux/bottom_half.h>
#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/kernel_stat.h>
#include <linux/poll.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "../shim.h"

void kopi_local_bh_disable(void)
{
	local_bh_disable();
}

void kopi_local_bh_enable(void)
{
	local_bh_enable();
}

/*
 * For spinlocks, as spin_lock_irqsave() does it: with PREEMPT_RT they sleep, no interrupt handler takes
 * one, and interrupts stay on.
 */
unsigned long kopi_lock_irq_save(void)
{
	unsigned long flags = 0;

	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
		local_irq_save(flags);
	return flags;
}

void kopi_lock_irq_restore(unsigned long flags)
{
	if (!IS_ENABLED(CONFIG_PREEMPT_RT))
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

void kopi_smp_mb(void)
{
	/* Its callers say what it pairs with. */
	smp_mb();
}

bool kopi_cpu_online(unsigned int cpu)
{
	return cpu < nr_cpu_ids && cpu_online(cpu);
}

u64 kopi_ktime_get_ns(void)
{
	return ktime_get_ns();
}

/* The CPU, and the number of times that it has run the softirq of received packets. */
u64 kopi_rx_softirq_run(void)
{
	unsigned int cpu = raw_smp_processor_id();

	return (u64)cpu << 32 | kstat_softirqs_cpu(NET_RX_SOFTIRQ, cpu);
}

unsigned long kopi_jiffies(void)
{
	return jiffies;
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

/* Under the queue's lock. A task that finds the entry removed need not take the lock. */
void kopi_wait_entry_leave(struct wait_queue_entry *entry)
{
	list_del_init_careful(&entry->entry);
}

struct workqueue_struct *kopi_alloc_workqueue(void)
{
	return alloc_workqueue("kopi", WQ_UNBOUND | WQ_MEM_RECLAIM, 0);
}

void kopi_synchronize_rcu_tasks(void)
{
	synchronize_rcu_tasks();
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

bool kopi_irqs_disabled(void)
{
	return irqs_disabled();
}

/* In C, because CFI knows no function of Rust's that returns an enum. */
static enum hrtimer_restart timer_expired(struct hrtimer *hrtimer)
{
	struct kopi_timer *timer = container_of(hrtimer, struct kopi_timer, hrtimer);

	/* It starts the timer again if necessary. */
	timer->expired(timer);
	return HRTIMER_NORESTART;
}

void kopi_timer_setup(struct kopi_timer *timer, void (*expired)(void *timer))
{
	timer->expired = expired;
	hrtimer_setup(&timer->hrtimer, timer_expired, CLOCK_MONOTONIC,
		      HRTIMER_MODE_REL_PINNED_SOFT);
}

void kopi_timer_start(struct kopi_timer *timer, u64 ns)
{
	hrtimer_start(&timer->hrtimer, ns_to_ktime(ns), HRTIMER_MODE_REL_PINNED_SOFT);
}

void kopi_timer_cancel(struct kopi_timer *timer)
{
	hrtimer_cancel(&timer->hrtimer);
}
