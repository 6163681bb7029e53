/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR BSD-3-Clause) */
/* Do not edit directly, auto-generated from: */
/*	uapi/kopi.yaml */
/* YNL-GEN uapi header */
/* To regenerate run: qemu/netlink */

#ifndef _UAPI_LINUX_KOPI_H
#define _UAPI_LINUX_KOPI_H

#define KOPI_FAMILY_NAME	"kopi"
#define KOPI_FAMILY_VERSION	1

#define KOPI_FILE_PATH_MAX	4095
#define KOPI_DEVICE_MAX		15
#define KOPI_RULES_MAX		8192
#define KOPI_USERNS_RULES_MAX	1024

/**
 * enum kopi_direction - Directions of a packet, seen from the flow.
 * @KOPI_DIRECTION_OUT: Sent by the flow.
 * @KOPI_DIRECTION_IN: Received by the flow.
 */
enum kopi_direction {
	KOPI_DIRECTION_OUT = 1,
	KOPI_DIRECTION_IN = 2,
};

/*
 * States of a connection of TCP, with the kernel's numbers.
 */
enum kopi_tcp_state {
	KOPI_TCP_STATE_ESTABLISHED = 1,
	KOPI_TCP_STATE_SYN_SENT,
	KOPI_TCP_STATE_SYN_RECV,
	KOPI_TCP_STATE_FIN_WAIT1,
	KOPI_TCP_STATE_FIN_WAIT2,
	KOPI_TCP_STATE_TIME_WAIT,
	KOPI_TCP_STATE_CLOSE,
	KOPI_TCP_STATE_CLOSE_WAIT,
	KOPI_TCP_STATE_LAST_ACK,
	KOPI_TCP_STATE_LISTEN,
	KOPI_TCP_STATE_CLOSING,
	KOPI_TCP_STATE_NEW_SYN_RECV,
};

/**
 * enum kopi_verdict - The decision about a flow's packets, or about its bind()
 *   and connect().
 * @KOPI_VERDICT_ALLOW: They pass.
 * @KOPI_VERDICT_DENY: They don't pass; bind() and connect() fail with EACCES.
 */
enum kopi_verdict {
	KOPI_VERDICT_ALLOW,
	KOPI_VERDICT_DENY,
};

/**
 * enum kopi_operation - What the enforced rules refused an ordinary socket.
 * @KOPI_OPERATION_BIND: A call of bind().
 * @KOPI_OPERATION_CONNECT: A call of connect().
 * @KOPI_OPERATION_LISTEN: A call of listen().
 * @KOPI_OPERATION_ACCEPT: A call of accept().
 * @KOPI_OPERATION_SEND: A call that sends.
 * @KOPI_OPERATION_RECEIVE: A call that receives.
 * @KOPI_OPERATION_PACKET: A packet that it would have sent or received.
 */
enum kopi_operation {
	KOPI_OPERATION_BIND,
	KOPI_OPERATION_CONNECT,
	KOPI_OPERATION_LISTEN,
	KOPI_OPERATION_ACCEPT,
	KOPI_OPERATION_SEND,
	KOPI_OPERATION_RECEIVE,
	KOPI_OPERATION_PACKET,
};

/**
 * enum kopi_tx_path - The TX path of flows' packets through a device, with the
 *   reason. The values from datagram on only apply to flows.
 * @KOPI_TX_PATH_DIRECT: Directly: passed to the driver, and segmented before
 *   if it was a GSO packet.
 * @KOPI_TX_PATH_NO_PROGRAM: Through the stack, because no XDP program is
 *   attached that makes the driver accept frames.
 * @KOPI_TX_PATH_TC: Through the stack, because tc has filters or programs at
 *   the device's egress.
 * @KOPI_TX_PATH_HOOK: Through the stack, because another netfilter egress hook
 *   runs later.
 * @KOPI_TX_PATH_TAP: Through the stack, because a packet socket captures the
 *   packets.
 * @KOPI_TX_PATH_MONITOR: Through the stack, because a device of type kopimon
 *   is up.
 * @KOPI_TX_PATH_QDISC: Through the stack, because a qdisc holds packets, or
 *   can't be bypassed.
 * @KOPI_TX_PATH_DOWN: Through the stack, because the device is down, has no
 *   carrier, or is not present, for instance while the machine is suspended.
 * @KOPI_TX_PATH_REFUSED: Through the stack, because the driver accepted no
 *   frames for a second, and is tried again after a minute; or because it has
 *   fewer queues for frames than it needs (virtio_net).
 * @KOPI_TX_PATH_DATAGRAM: Through the stack, because the last packet was a
 *   datagram with special needs, one that something looks at, or one of fewer
 *   than three that were sent at once.
 * @KOPI_TX_PATH_TRANSFORMED: Through the stack, because IPsec or a tunnel had
 *   transformed the packet.
 * @KOPI_TX_PATH_EXTRAS: Through the stack, because the packet had IP options,
 *   a VLAN tag, a time stamp request, or a transmission time.
 * @KOPI_TX_PATH_BEHIND: Through the stack, because another attached device had
 *   earlier packets of the flow, the queue had no room for the packet, or the
 *   stack held earlier ones for too long; the direct path is then tried again
 *   after a second.
 */
enum kopi_tx_path {
	KOPI_TX_PATH_DIRECT,
	KOPI_TX_PATH_NO_PROGRAM,
	KOPI_TX_PATH_TC,
	KOPI_TX_PATH_HOOK,
	KOPI_TX_PATH_TAP,
	KOPI_TX_PATH_MONITOR,
	KOPI_TX_PATH_QDISC,
	KOPI_TX_PATH_DOWN,
	KOPI_TX_PATH_REFUSED,
	KOPI_TX_PATH_DATAGRAM,
	KOPI_TX_PATH_TRANSFORMED,
	KOPI_TX_PATH_EXTRAS,
	KOPI_TX_PATH_BEHIND,
};

/**
 * enum kopi_rx_path - The RX path of flows' packets from a device, with the
 *   reason. The value not-redirected only applies to flows.
 * @KOPI_RX_PATH_DIRECT: Directly: the XDP program redirects them. Datagrams go
 *   to their flows without the stack. Those of a flow that asked for GRO
 *   packets are coalesced, and GRO packets go to the stack.
 * @KOPI_RX_PATH_NO_PROGRAM: Through the stack, because the device has no XDP
 *   program that redirects them.
 * @KOPI_RX_PATH_DOWN: Through the stack, because the redirect device is down.
 * @KOPI_RX_PATH_VLAN: Through the stack, because the device strips VLAN tags,
 *   so that its XDP program can't see them.
 * @KOPI_RX_PATH_NOT_REDIRECTED: Through the stack, because the flow has no
 *   port, or is on no channel that receives.
 * @KOPI_RX_PATH_TAP: Through the stack, because a packet socket sees incoming
 *   packets.
 * @KOPI_RX_PATH_TC: Through the stack, because tc has an ingress hook.
 * @KOPI_RX_PATH_HOOK: Through the stack, because netfilter has an ingress
 *   hook.
 * @KOPI_RX_PATH_XDP: Through the stack, because the device has a generic XDP
 *   program.
 * @KOPI_RX_PATH_RAW: Through the stack, because a raw socket sees incoming
 *   UDP.
 * @KOPI_RX_PATH_UPPER: Through the stack, because the device is below a
 *   bridge, a bond, a VRF or the like.
 * @KOPI_RX_PATH_RPS: Through the stack, because RPS or RFS choose the CPU.
 * @KOPI_RX_PATH_IPSEC: Through the stack, because the network namespace has
 *   IPsec policies.
 */
enum kopi_rx_path {
	KOPI_RX_PATH_DIRECT,
	KOPI_RX_PATH_NO_PROGRAM,
	KOPI_RX_PATH_DOWN,
	KOPI_RX_PATH_VLAN,
	KOPI_RX_PATH_NOT_REDIRECTED,
	KOPI_RX_PATH_TAP,
	KOPI_RX_PATH_TC,
	KOPI_RX_PATH_HOOK,
	KOPI_RX_PATH_XDP,
	KOPI_RX_PATH_RAW,
	KOPI_RX_PATH_UPPER,
	KOPI_RX_PATH_RPS,
	KOPI_RX_PATH_IPSEC,
};

/**
 * enum kopi_channel_use - What a flow does by a channel, or why it does
 *   nothing by one.
 * @KOPI_CHANNEL_USE_BOTH_WAYS: It is on a channel, and sends and receives by
 *   its rings.
 * @KOPI_CHANNEL_USE_SEND_ONLY: It is on a channel that only sends, as programs
 *   of kopi run are. It receives by system calls.
 * @KOPI_CHANNEL_USE_CORKED: It sends by system calls only, because it has been
 *   corked (UDP_CORK, MSG_MORE).
 * @KOPI_CHANNEL_USE_REFUSED: It has no channel, because the last request for
 *   one was refused; channel-error says why.
 * @KOPI_CHANNEL_USE_NOT_REQUESTED: It has no channel, because its program has
 *   requested none; kopi run does when the flow has sent some datagrams.
 * @KOPI_CHANNEL_USE_STREAM: It is of TCP, which has no channels.
 */
enum kopi_channel_use {
	KOPI_CHANNEL_USE_BOTH_WAYS,
	KOPI_CHANNEL_USE_SEND_ONLY,
	KOPI_CHANNEL_USE_CORKED,
	KOPI_CHANNEL_USE_REFUSED,
	KOPI_CHANNEL_USE_NOT_REQUESTED,
	KOPI_CHANNEL_USE_STREAM,
};

enum {
	KOPI_A_INFO_ABI_VERSION = 1,
	KOPI_A_INFO_ADDRESS_FAMILY,
	KOPI_A_INFO_FLOWS,
	KOPI_A_INFO_RULES,
	KOPI_A_INFO_GENERATION,
	KOPI_A_INFO_CHANNELS,
	KOPI_A_INFO_MONITORS,

	__KOPI_A_INFO_MAX,
	KOPI_A_INFO_MAX = (__KOPI_A_INFO_MAX - 1)
};

enum {
	KOPI_A_STATS_TX_PACKETS = 1,
	KOPI_A_STATS_TX_BYTES,
	KOPI_A_STATS_TX_ZEROCOPY,
	KOPI_A_STATS_TX_TAKEN,
	KOPI_A_STATS_TX_DROP_DENIED,
	KOPI_A_STATS_TX_DROP_RULE,
	KOPI_A_STATS_TX_DROP_RATE,
	KOPI_A_STATS_TX_DROP_UNREACHABLE,
	KOPI_A_STATS_TX_DROP_TOO_LONG,
	KOPI_A_STATS_TX_DROP_NO_BUFFER,
	KOPI_A_STATS_TX_DROP_INVALID,
	KOPI_A_STATS_TX_DROP_OTHER,
	KOPI_A_STATS_RX_PACKETS,
	KOPI_A_STATS_RX_BYTES,
	KOPI_A_STATS_RX_TAKEN,
	KOPI_A_STATS_RX_DROP_RING_FULL,
	KOPI_A_STATS_RX_DROP_NO_FRAME,
	KOPI_A_STATS_RX_DROP_TOO_LONG,
	KOPI_A_STATS_RX_DROP_RULE,
	KOPI_A_STATS_RX_DROP_RATE,

	__KOPI_A_STATS_MAX,
	KOPI_A_STATS_MAX = (__KOPI_A_STATS_MAX - 1)
};

enum {
	KOPI_A_RING_SIZE = 1,
	KOPI_A_RING_PRODUCER,
	KOPI_A_RING_CONSUMER,

	__KOPI_A_RING_MAX,
	KOPI_A_RING_MAX = (__KOPI_A_RING_MAX - 1)
};

enum {
	KOPI_A_CHANNEL_ID = 1,
	KOPI_A_CHANNEL_FLOWS,
	KOPI_A_CHANNEL_FRAME_SIZE,
	KOPI_A_CHANNEL_FRAME_COUNT,
	KOPI_A_CHANNEL_REGION_SIZE,
	KOPI_A_CHANNEL_FLAGS,
	KOPI_A_CHANNEL_TX,
	KOPI_A_CHANNEL_COMPLETION,
	KOPI_A_CHANNEL_FILL,
	KOPI_A_CHANNEL_RX,
	KOPI_A_CHANNEL_TX_PENDING,
	KOPI_A_CHANNEL_TX_INVALID,
	KOPI_A_CHANNEL_FILL_INVALID,
	KOPI_A_CHANNEL_RING_BROKEN,
	KOPI_A_CHANNEL_UID,
	KOPI_A_CHANNEL_ENGINE_TIME,

	__KOPI_A_CHANNEL_MAX,
	KOPI_A_CHANNEL_MAX = (__KOPI_A_CHANNEL_MAX - 1)
};

enum {
	KOPI_A_FLOW_ID = 1,
	KOPI_A_FLOW_LOCAL_ADDRESS,
	KOPI_A_FLOW_LOCAL_PORT,
	KOPI_A_FLOW_REMOTE_ADDRESS,
	KOPI_A_FLOW_REMOTE_PORT,
	KOPI_A_FLOW_IFINDEX,
	KOPI_A_FLOW_UID,
	KOPI_A_FLOW_GID,
	KOPI_A_FLOW_PID,
	KOPI_A_FLOW_COMMAND,
	KOPI_A_FLOW_EXE,
	KOPI_A_FLOW_EXE_DEVICE,
	KOPI_A_FLOW_EXE_INODE,
	KOPI_A_FLOW_CGROUP,
	KOPI_A_FLOW_CGROUP_PATH,
	KOPI_A_FLOW_CHANNEL,
	KOPI_A_FLOW_NUMBER,
	KOPI_A_FLOW_STATS,
	KOPI_A_FLOW_RULE_OUT,
	KOPI_A_FLOW_RULE_IN,
	KOPI_A_FLOW_DENIED,
	KOPI_A_FLOW_RULE,
	KOPI_A_FLOW_LIMIT,
	KOPI_A_FLOW_DIRECTION,
	KOPI_A_FLOW_TX_PATH,
	KOPI_A_FLOW_TX_PATH_IFINDEX,
	KOPI_A_FLOW_RX_PATH,
	KOPI_A_FLOW_PROTOCOL,
	KOPI_A_FLOW_TCP_STATE,
	KOPI_A_FLOW_OPERATION,
	KOPI_A_FLOW_CHANNEL_USE,
	KOPI_A_FLOW_CHANNEL_ERROR,

	__KOPI_A_FLOW_MAX,
	KOPI_A_FLOW_MAX = (__KOPI_A_FLOW_MAX - 1)
};

enum {
	KOPI_A_TOTALS_STATS = 1,
	KOPI_A_TOTALS_FLOWS_OPENED,
	KOPI_A_TOTALS_FLOWS_DENIED,

	__KOPI_A_TOTALS_MAX,
	KOPI_A_TOTALS_MAX = (__KOPI_A_TOTALS_MAX - 1)
};

enum {
	KOPI_A_RULE_HANDLE = 1,
	KOPI_A_RULE_BEFORE,
	KOPI_A_RULE_UID_MIN,
	KOPI_A_RULE_UID_MAX,
	KOPI_A_RULE_GID,
	KOPI_A_RULE_CGROUP_PATH,
	KOPI_A_RULE_CGROUP,
	KOPI_A_RULE_EXE,
	KOPI_A_RULE_EXE_DEVICE,
	KOPI_A_RULE_EXE_INODE,
	KOPI_A_RULE_EXE_STALE,
	KOPI_A_RULE_PROTOCOL,
	KOPI_A_RULE_LOCAL_PORT_MIN,
	KOPI_A_RULE_LOCAL_PORT_MAX,
	KOPI_A_RULE_REMOTE_ADDRESS,
	KOPI_A_RULE_REMOTE_PREFIX,
	KOPI_A_RULE_REMOTE_PORT_MIN,
	KOPI_A_RULE_REMOTE_PORT_MAX,
	KOPI_A_RULE_DEVICE,
	KOPI_A_RULE_DIRECTION,
	KOPI_A_RULE_VERDICT,
	KOPI_A_RULE_MARK,
	KOPI_A_RULE_PRIORITY,
	KOPI_A_RULE_RATE_BYTES,
	KOPI_A_RULE_RATE_PACKETS,
	KOPI_A_RULE_BURST,
	KOPI_A_RULE_SHARED,
	KOPI_A_RULE_COMMENT,
	KOPI_A_RULE_PACKETS,
	KOPI_A_RULE_BYTES,
	KOPI_A_RULE_DENIED,
	KOPI_A_RULE_WEIGHT,
	KOPI_A_RULE_CGROUP_STALE,

	__KOPI_A_RULE_MAX,
	KOPI_A_RULE_MAX = (__KOPI_A_RULE_MAX - 1)
};

enum {
	KOPI_A_RULESET_DEFAULT = 1,
	KOPI_A_RULESET_RULE,
	KOPI_A_RULESET_GENERATION,
	KOPI_A_RULESET_CHECK,
	KOPI_A_RULESET_HANDLE,
	KOPI_A_RULESET_ENFORCE,
	KOPI_A_RULESET_ENFORCING,
	KOPI_A_RULESET_KEEP,

	__KOPI_A_RULESET_MAX,
	KOPI_A_RULESET_MAX = (__KOPI_A_RULESET_MAX - 1)
};

enum {
	KOPI_A_ENGINE_CPU = 1,
	KOPI_A_ENGINE_IDLE,
	KOPI_A_ENGINE_BUDGET,
	KOPI_A_ENGINE_CHANNELS,
	KOPI_A_ENGINE_VISITS,
	KOPI_A_ENGINE_WAKEUPS,
	KOPI_A_ENGINE_BUSY,
	KOPI_A_ENGINE_AWAKE,

	__KOPI_A_ENGINE_MAX,
	KOPI_A_ENGINE_MAX = (__KOPI_A_ENGINE_MAX - 1)
};

enum {
	KOPI_A_ENGINES_CPU = 1,
	KOPI_A_ENGINES_IDLE,
	KOPI_A_ENGINES_BUDGET,

	__KOPI_A_ENGINES_MAX,
	KOPI_A_ENGINES_MAX = (__KOPI_A_ENGINES_MAX - 1)
};

enum {
	KOPI_A_DEVICE_IFINDEX = 1,
	KOPI_A_DEVICE_TX_PATH,
	KOPI_A_DEVICE_PACKETS,
	KOPI_A_DEVICE_GSO_PACKETS,
	KOPI_A_DEVICE_PASSED,
	KOPI_A_DEVICE_DROPPED,
	KOPI_A_DEVICE_PORT_MAP,
	KOPI_A_DEVICE_RX_PATH,
	KOPI_A_DEVICE_RECEIVED,
	KOPI_A_DEVICE_GRO_PACKETS,
	KOPI_A_DEVICE_RECEIVE_DROPPED,
	KOPI_A_DEVICE_RECEIVED_DIRECT,

	__KOPI_A_DEVICE_MAX,
	KOPI_A_DEVICE_MAX = (__KOPI_A_DEVICE_MAX - 1)
};

enum {
	KOPI_CMD_INFO_GET = 1,
	KOPI_CMD_FLOW_GET,
	KOPI_CMD_CHANNEL_GET,
	KOPI_CMD_TOTALS_GET,
	KOPI_CMD_RULE_GET,
	KOPI_CMD_RULE_ADD,
	KOPI_CMD_RULE_DEL,
	KOPI_CMD_RULESET_GET,
	KOPI_CMD_RULESET_SET,
	KOPI_CMD_FLOW_OPENED_NTF,
	KOPI_CMD_FLOW_BOUND_NTF,
	KOPI_CMD_FLOW_CONNECTED_NTF,
	KOPI_CMD_FLOW_CLOSED_NTF,
	KOPI_CMD_FLOW_DENIED_NTF,
	KOPI_CMD_LIMIT_NTF,
	KOPI_CMD_OVERRUN_NTF,
	KOPI_CMD_ENGINE_GET,
	KOPI_CMD_ENGINE_SET,
	KOPI_CMD_DEVICE_GET,
	KOPI_CMD_DEVICE_ATTACH,
	KOPI_CMD_DEVICE_DETACH,
	KOPI_CMD_SOCKET_DENIED_NTF,

	__KOPI_CMD_MAX,
	KOPI_CMD_MAX = (__KOPI_CMD_MAX - 1)
};

#define KOPI_MCGRP_EVENTS	"events"

#endif /* _UAPI_LINUX_KOPI_H */
