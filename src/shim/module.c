// SPDX-License-Identifier: GPL-2.0
/* The module's parameters and reference count. */

#include <linux/module.h>

#include "../shim.h"

/* In Rust, modules can't have parameters that sysfs shows. */
static int family = 19;
module_param(family, int, 0444);
MODULE_PARM_DESC(family, "Number of the socket family (default: 19)");

static unsigned int copybreak = 2048;
module_param(copybreak, uint, 0644);
MODULE_PARM_DESC(copybreak,
		 "Longer payloads, in bytes, are sent by reference (default: 2048; 65536: none)");

unsigned int kopi_copybreak_parameter(void)
{
	return READ_ONCE(copybreak);
}

int kopi_family_parameter(void)
{
	return family;
}

void kopi_module_get(void)
{
	__module_get(THIS_MODULE);
}

void kopi_module_put(void)
{
	module_put(THIS_MODULE);
}
