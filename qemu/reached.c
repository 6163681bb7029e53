// SPDX-License-Identifier: GPL-2.0
/*
 * A plugin of QEMU's: which instructions of the kernel's modules the machine has run, in system calls, softirqs and
 * threads alike. Writes their addresses at the end, one a line.
 *
 * An instruction counts from the moment when the piece of code begins that QEMU translated together with it; of a
 * piece that faults, the rest counts, too.
 *
 * qemu-system-x86_64 -plugin reached.so,out=FILE
 */

#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qemu-plugin.h"

EXPORT int qemu_plugin_version = 4;

/* Where Linux on x86-64 has its modules. */
#define MODULES_START UINT64_C(0xffffffffa0000000)
#define MODULES_END UINT64_C(0xffffffffff000000)

/* CPUs translate at the same time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Pieces of modules' code as QEMU translates them, some more than once. */
#define PIECES_MAX (1u << 20)
static struct {
	uint64_t *addresses;
	size_t len;
} *pieces;
static size_t used;
/* How often each was begun. */
static struct qemu_plugin_scoreboard *counts;
static const char *out = "reached";

static qemu_plugin_u64 count_of(size_t piece)
{
	return (qemu_plugin_u64) { counts, piece * sizeof(uint64_t) };
}

static void keep(struct qemu_plugin_tb *tb)
{
	size_t index, len = qemu_plugin_tb_n_insns(tb);
	uint64_t *addresses = calloc(len, sizeof(*addresses));

	if (used == PIECES_MAX || !addresses) {
		fprintf(stderr, "reached: more code than there is room for\n");
		exit(1);
	}
	for (index = 0; index < len; index++)
		addresses[index] = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, index));
	pieces[used].addresses = addresses;
	pieces[used].len = len;
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64,
							  count_of(used), 1);
	used++;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	uint64_t address = qemu_plugin_tb_vaddr(tb);

	(void)id;
	if (address < MODULES_START || address >= MODULES_END)
		return;
	pthread_mutex_lock(&lock);
	keep(tb);
	pthread_mutex_unlock(&lock);
}

static void ended(qemu_plugin_id_t id, void *data)
{
	size_t piece, index;
	FILE *file = fopen(out, "w");

	(void)id;
	(void)data;
	if (!file) {
		perror(out);
		return;
	}
	for (piece = 0; piece < used; piece++)
		for (index = 0; index < pieces[piece].len && qemu_plugin_u64_sum(count_of(piece)); index++)
			fprintf(file, "%" PRIx64 "\n", pieces[piece].addresses[index]);
	fclose(file);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
	int index;

	(void)info;
	for (index = 0; index < argc; index++)
		if (!strncmp(argv[index], "out=", 4))
			out = strdup(argv[index] + 4);
	pieces = calloc(PIECES_MAX, sizeof(*pieces));
	counts = qemu_plugin_scoreboard_new(PIECES_MAX * sizeof(uint64_t));
	if (!pieces || !counts || !out)
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, ended, NULL);
	return 0;
}
