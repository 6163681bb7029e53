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
 * others than those without: made anew, of what memory has. The stale one goes
 * when the byte is written to again, by an address at which it can be.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/irq_work.h>
#include <linux/kdebug.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/notifier.h>
#include <linux/ptrace.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>

/* The last one. Another may take its place before it is dropped, and comes again. */
static unsigned long stale;

static void drop_stale(struct work_struct *work)
{
	unsigned long at = READ_ONCE(stale);
	struct page *page;
	u8 *alias;

	if (at >= __START_KERNEL_map && at < __START_KERNEL_map + KERNEL_IMAGE_SIZE)
		page = pfn_to_page(__pa_symbol(at) >> PAGE_SHIFT);
	else
		page = vmalloc_to_page((void *)at);
	alias = page ? vmap(&page, 1, VM_MAP, PAGE_KERNEL) : NULL;
	if (!alias)
		return;
	/* Atomic, since the kernel may change it at this moment. */
	asm volatile("lock orb $0, %0" : "+m" (alias[offset_in_page(at)]));
	vunmap(alias);
	pr_notice("the emulator ran an int3 that isn't there at %pS\n", (void *)at);
}

static DECLARE_WORK(drop_work, drop_stale);

static void drop_soon(struct irq_work *work)
{
	schedule_work(&drop_work);
}

static DEFINE_IRQ_WORK(drop_irq_work, drop_soon);

static int on_die(struct notifier_block *block, unsigned long event, void *data)
{
	struct pt_regs *regs = ((struct die_args *)data)->regs;
	unsigned long at = regs->ip - 1;

	if (event != DIE_INT3 || user_mode(regs) || READ_ONCE(*(u8 *)at) == 0xcc)
		return NOTIFY_DONE;
	WRITE_ONCE(stale, at);
	irq_work_queue(&drop_irq_work);
	regs->ip = at;
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
	irq_work_sync(&drop_irq_work);
	flush_work(&drop_work);
}
module_exit(stale_int3_exit);

MODULE_DESCRIPTION("Goes on where QEMU's TCG runs an int3 that isn't there");
MODULE_LICENSE("GPL");
