// SPDX-License-Identifier: GPL-2.0
/*
 * For the test machine under QEMU's TCG: wakes a CPU whose timer interrupt the
 * emulator has lost.
 *
 * On a busy host, once in some hours, the timer of a CPU's local APIC has
 * expired, and no interrupt has come: none is pending, and the kernel goes on
 * waiting for the event that it has programmed. All timers of that CPU stand
 * still then, and with them RCU, and whoever waits for that. Interrupts of
 * other CPUs still come. By one of them the CPU starts a timer that comes
 * before all others, so that the kernel programs its APIC anew.
 *
 * Each CPU has a timer that expires once a second, and looks after the next
 * CPU, so that a machine that stood as a whole isn't taken for this.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/hrtimer.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/smp.h>

/* So many seconds that others saw and a CPU didn't. */
#define MISSED_MAX 5

static enum cpuhp_state state;
static DEFINE_PER_CPU(struct hrtimer, beat);
static DEFINE_PER_CPU(struct hrtimer, first);
static DEFINE_PER_CPU(unsigned int, missed);

static enum hrtimer_restart on_first(struct hrtimer *timer)
{
	return HRTIMER_NORESTART;
}

static void wake(void *info)
{
	hrtimer_start(this_cpu_ptr(&first), ns_to_ktime(1), HRTIMER_MODE_ABS_PINNED_HARD);
	pr_notice("the emulator lost a timer interrupt of CPU %d\n", smp_processor_id());
}

static DEFINE_PER_CPU(call_single_data_t, call) = CSD_INIT(wake, NULL);

static enum hrtimer_restart on_beat(struct hrtimer *timer)
{
	int here = smp_processor_id(), next = cpumask_next_wrap(here, cpu_online_mask);

	this_cpu_write(missed, 0);
	if (next != here && ++per_cpu(missed, next) >= MISSED_MAX) {
		per_cpu(missed, next) = 0;
		smp_call_function_single_async(next, &per_cpu(call, next));
	}
	hrtimer_forward_now(timer, ns_to_ktime(NSEC_PER_SEC));
	return HRTIMER_RESTART;
}

static int begin(unsigned int cpu)
{
	per_cpu(missed, cpu) = 0;
	hrtimer_setup(this_cpu_ptr(&first), on_first, CLOCK_MONOTONIC, HRTIMER_MODE_ABS_PINNED_HARD);
	hrtimer_setup(this_cpu_ptr(&beat), on_beat, CLOCK_MONOTONIC, HRTIMER_MODE_REL_PINNED_HARD);
	hrtimer_start(this_cpu_ptr(&beat), ns_to_ktime(NSEC_PER_SEC), HRTIMER_MODE_REL_PINNED_HARD);
	return 0;
}

static int end(unsigned int cpu)
{
	hrtimer_cancel(this_cpu_ptr(&beat));
	hrtimer_cancel(this_cpu_ptr(&first));
	return 0;
}

static int __init lost_timers_init(void)
{
	int result = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "lost_timers:online", begin, end);

	if (result < 0)
		return result;
	state = result;
	return 0;
}
module_init(lost_timers_init);

static void __exit lost_timers_exit(void)
{
	cpuhp_remove_state(state);
}
module_exit(lost_timers_exit);

MODULE_DESCRIPTION("Wakes CPUs whose timer interrupt QEMU's TCG has lost");
MODULE_LICENSE("GPL");
