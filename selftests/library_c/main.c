// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of libkopi: `library_c list` names them, `library_c NAME` runs one. Built by
 * qemu/build tools.
 */
#include "library_c.h"

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "echo", echo },
	{ "batches", batches },
	{ "lengths", lengths },
	{ "refused_to_open", refused_to_open },
	{ "refused_to_send", refused_to_send },
	{ "foreign_frames", foreign_frames },
	{ "completions", completions },
	{ "offloads", offloads },
	{ "control_data", control_data },
	{ "waiting", waiting },
	{ "event_loop", event_loop },
	{ "joined", joined },
	{ "threads", threads },
	{ "no_allocations", no_allocations },
	{ "leaks", leaks },
};

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	if (!strcmp(name, "absent"))
		return absent(), 0;
	if (!strcmp(name, "full_send_buffer") && argc > 2)
		return full_send_buffer(argv[2]), 0;
	for (unsigned int i = 0; i < sizeof(tests) / sizeof(*tests); i++) {
		if (!strcmp(name, "list"))
			puts(tests[i].name);
		else if (!strcmp(name, tests[i].name))
			return tests[i].run(), 0;
	}
	return strcmp(name, "list") ? 2 : 0;
}
