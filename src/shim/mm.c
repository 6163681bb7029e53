// SPDX-License-Identifier: GPL-2.0
/* Pages, slab objects, copies, and the limit of locked memory. */

#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>
#include <linux/sockptr.h>
#include <linux/uaccess.h>
#include <linux/uio.h>

#include "../shim.h"

void kopi_memcpy(void *to, const void *from, size_t len)
{
	memcpy(to, from, len);
}

/*
 * Copies data that a process sends, if their pages are there: a process can have it take for ever until a page
 * is. False, and nothing is taken, if one isn't.
 */
bool kopi_copy_from_iter_nofault(void *to, size_t len, struct iov_iter *from)
{
	bool copied;

	pagefault_disable();
	copied = copy_from_iter_full(to, len, from);
	pagefault_enable();
	return copied;
}

struct page *kopi_alloc_page(void)
{
	return alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO | __GFP_NOWARN |
			  __GFP_RETRY_MAYFAIL);
}

pgprot_t kopi_page_kernel(void)
{
	return PAGE_KERNEL;
}

struct user_struct *kopi_get_current_user(void)
{
	return get_uid(current_user());
}

long kopi_user_locked_vm_read(struct user_struct *user)
{
	return atomic_long_read(&user->locked_vm);
}

bool kopi_user_locked_vm_try_cmpxchg(struct user_struct *user, long old, long new)
{
	return atomic_long_try_cmpxchg(&user->locked_vm, &old, new);
}

void kopi_user_locked_vm_sub(struct user_struct *user, long pages)
{
	atomic_long_sub(pages, &user->locked_vm);
}

unsigned long kopi_rlimit_memlock(void)
{
	return rlimit(RLIMIT_MEMLOCK);
}

void kopi_vm_flags_set_clear(struct vm_area_struct *vma, unsigned long set,
			     unsigned long clear)
{
	vm_flags_mod(vma, set, clear);
}

int kopi_copy_struct_from_sockptr(void *to, size_t ksize, sockptr_t from, size_t usize)
{
	return copy_struct_from_sockptr(to, ksize, from, usize);
}

unsigned long kopi_copy_to_user(void __user *to, const void *from, unsigned long size)
{
	return copy_to_user(to, from, size);
}

unsigned long kopi_copy_from_user(void *to, const void __user *from, unsigned long size)
{
	return copy_from_user(to, from, size);
}

/* The cache isn't merged with others, so that leaked objects can be seen. */
struct kmem_cache *kopi_slab_create(const char *name, unsigned int size,
				    unsigned int align)
{
	return kmem_cache_create(name, size, align,
				 SLAB_ACCOUNT | SLAB_NO_MERGE, NULL);
}

void *kopi_slab_alloc(struct kmem_cache *cache)
{
	return kmem_cache_alloc(cache, GFP_KERNEL);
}

/* Without sleeping, and without the reserves, which are for what comes in. */
struct page *kopi_alloc_pages_nowait(unsigned int order)
{
	return alloc_pages(GFP_NOWAIT | __GFP_COMP | __GFP_NOWARN, order);
}

void *kopi_page_address(const struct page *page)
{
	return page_address(page);
}

int kopi_page_ref_count(const struct page *page)
{
	return page_ref_count(page);
}

void kopi_page_ref_add(struct page *page, int n)
{
	page_ref_add(page, n);
}

void kopi_put_page(struct page *page)
{
	put_page(page);
}

unsigned int kopi_get_order(unsigned long size)
{
	return get_order(size);
}

unsigned long kopi_page_size(struct page *page)
{
	return page_size(page);
}
