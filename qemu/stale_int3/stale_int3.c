// SPDX-License-Identifier: GPL-2.0
/*
 * For the test machine under QEMU's TCG: goes on where the emulator runs an
 * int3 that isn't there.
 *
 * The kernel changes its code (static keys, tracepoints) by writing an int3
 * first and taking it away last. TCG drops its translation of code that is
 * written to before the write, not with it: another CPU that translates in
 * between has the old byte for good. With the last write that is the int3, and
 * the kernel dies of it: "Oops: int3". It happens where the emulator's thread
 * is preempted just there, so on a busy host.
 *
 * The translations of an instruction that is resumed with the flag RF are
 * others than those without: made anew, of what memory has.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kdebug.h>
#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/ptrace.h>

static int on_die(struct notifier_block *block, unsigned long event, void *data)
{
	static unsigned long seen;
	struct pt_regs *regs = ((struct die_args *)data)->regs;
	const u8 *code = (const u8 *)regs->ip - 1;

	if (event != DIE_INT3 || user_mode(regs) || READ_ONCE(*code) == 0xcc)
		return NOTIFY_DONE;
	/* Once for each place, or nearly: it comes here each time from now on. */
	if (xchg(&seen, regs->ip) != regs->ip)
		pr_notice("the emulator ran an int3 that isn't there at %pS\n", code);
	regs->ip = (unsigned long)code;
	regs->flags |= X86_EFLAGS_RF;
	return NOTIFY_STOP;
}

static struct notifier_block block = {
	.notifier_call = on_die,
	.priority = INT_MAX,
};

static int __init stale_int3_init(void)
{
	return register_die_notifier(&block);
}
module_init(stale_int3_init);

static void __exit stale_int3_exit(void)
{
	unregister_die_notifier(&block);
}
module_exit(stale_int3_exit);

MODULE_DESCRIPTION("Goes on where QEMU's TCG runs an int3 that isn't there");
MODULE_LICENSE("GPL");
