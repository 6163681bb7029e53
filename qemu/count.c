// SPDX-License-Identifier: GPL-2.0
/*
 * A plugin of QEMU's: how many instructions which code of the machine takes, each one counted.
 *
 * What runs in the machine says what is meant by an instruction that does nothing, NOPL with a
 * number, as kopi-bench does (tools/bench/src/clock.rs): MARK + 1 begins a measurement, MARK + 2
 * one of what is to be taken out of others, and MARK + 3 ends it. Each is written to PREFIX.row, or
 * to PREFIX.cost.N, with lines of an address and a number of instructions; of rows the last.
 * For one CPU.
 *
 * qemu-system-x86_64 -plugin count.so,out=PREFIX
 */

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qemu-plugin.h"

EXPORT int qemu_plugin_version = 4;

#define MARK UINT32_C(0x6b6f7000)
enum mark { NONE, ROW, COST, END };

/* Pieces of code as QEMU translates them, some more than once. */
#define PIECES_MAX (1u << 22)
static struct {
	uint64_t address;
	/* When the measurement began. */
	uint64_t before;
} *pieces;
static size_t used;
/* Instructions of each. */
static struct qemu_plugin_scoreboard *counts;

static const char *prefix = "count";
static enum mark measured;
static unsigned int costs;

static qemu_plugin_u64 count_of(size_t piece)
{
	return (qemu_plugin_u64) { counts, piece * sizeof(uint64_t) };
}

static void begin(enum mark what)
{
	size_t piece;

	for (piece = 0; piece < used; piece++)
		pieces[piece].before = qemu_plugin_u64_get(count_of(piece), 0);
	measured = what;
}

static void end(void)
{
	char name[4096];
	uint64_t count;
	size_t piece;
	FILE *file;

	if (measured == ROW)
		snprintf(name, sizeof(name), "%s.row", prefix);
	else
		snprintf(name, sizeof(name), "%s.cost.%u", prefix, ++costs);
	file = fopen(name, "w");
	if (!file) {
		perror(name);
		exit(1);
	}
	for (piece = 0; piece < used; piece++) {
		count = qemu_plugin_u64_get(count_of(piece), 0) - pieces[piece].before;
		if (count)
			fprintf(file, "%" PRIx64 " %" PRIu64 "\n", pieces[piece].address, count);
	}
	fclose(file);
	measured = NONE;
}

static void marked(unsigned int cpu, void *data)
{
	enum mark mark = (uintptr_t)data;

	(void)cpu;
	if (mark != END)
		begin(mark);
	else if (measured != NONE)
		end();
}

/* Which mark an instruction is. */
static enum mark mark_of(const struct qemu_plugin_insn *insn)
{
	static const uint8_t nopl[] = { 0x0f, 0x1f, 0x80 };
	uint8_t bytes[7];
	uint32_t number;

	if (qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) != sizeof(bytes) ||
	    memcmp(bytes, nopl, sizeof(nopl)))
		return NONE;
	memcpy(&number, bytes + sizeof(nopl), sizeof(number));
	number -= MARK;
	return number <= END ? number : NONE;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t index, len = qemu_plugin_tb_n_insns(tb);

	(void)id;
	for (index = 0; index < len; index++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, index);
		enum mark mark = mark_of(insn);

		if (mark != NONE)
			qemu_plugin_register_vcpu_insn_exec_cb(insn, marked, QEMU_PLUGIN_CB_NO_REGS,
							       (void *)(uintptr_t)mark);
	}
	if (used == PIECES_MAX) {
		fprintf(stderr, "count: more code than there is room for\n");
		exit(1);
	}
	pieces[used].address = qemu_plugin_tb_vaddr(tb);
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64,
							  count_of(used), len);
	used++;
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
	int index;

	(void)info;
	for (index = 0; index < argc; index++)
		if (!strncmp(argv[index], "out=", 4))
			prefix = strdup(argv[index] + 4);
	pieces = calloc(PIECES_MAX, sizeof(*pieces));
	counts = qemu_plugin_scoreboard_new(PIECES_MAX * sizeof(uint64_t));
	if (!pieces || !counts || !prefix)
		return 1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
