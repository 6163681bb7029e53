/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Included before all else: as for compilers without __typeof_unqual__(), types of per-CPU variables don't have the
 * address space (asm/percpu_types.h), which percpu.h adds to each access then. With it, pahole's libbpf before 1.6
 * doesn't know the kernel's structures again in the module's BTF. So the module had copies of them, ten times as much
 * BTF, and the BPF verifier refused pointers to the kernel's as arguments of the module's functions.
 */
#ifdef _ASM_X86_PERCPU_H
#error "asm/percpu.h must see what is undefined here"
#endif
#undef USE_TYPEOF_UNQUAL
#undef __percpu_qual
#define __percpu_qual
