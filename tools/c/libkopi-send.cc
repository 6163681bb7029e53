/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Sends numbered datagrams in batches with libkopi, in C++17:
 * c++ -std=c++17 libkopi-send.cc $(pkg-config --cflags --libs kopi); ./a.out 192.0.2.1 7777 1000
 */
#include <kopi.h>
#include <netdb.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

int check(int result, const std::string &what)
{
	if (result < 0)
		throw std::runtime_error(what + ": " + kopi_strerror(result));
	return result;
}

struct Closer {
	void operator()(kopi_flow *flow) const { kopi_flow_close(flow); }
	void operator()(kopi_channel *channel) const { kopi_channel_close(channel); }
	void operator()(addrinfo *address) const { freeaddrinfo(address); }
};
using Flow = std::unique_ptr<kopi_flow, Closer>;
using Channel = std::unique_ptr<kopi_channel, Closer>;
using Address = std::unique_ptr<addrinfo, Closer>;

Address resolve(const char *host, const char *port)
{
	addrinfo hints = {}, *found;

	hints.ai_socktype = SOCK_DGRAM;
	if (int error = getaddrinfo(host, port, &hints, &found))
		throw std::runtime_error(std::string(host) + ": " + gai_strerror(error));
	return Address(found);
}

Flow connect(const addrinfo &to)
{
	kopi_flow *flow;

	check(kopi_flow_open(&flow, to.ai_family), "no flow");
	Flow owned(flow);
	check(kopi_flow_connect(flow, to.ai_addr, to.ai_addrlen), "connect");
	return owned;
}

/* Sends only, by GSO packets: consecutive datagrams of one size travel as one. */
Channel open(kopi_flow *flow)
{
	kopi_options options = {};
	kopi_channel *channel;

	options.flags = KOPI_CHANNEL_GSO;
	options.rx_frames = KOPI_NO_FRAMES;
	check(kopi_channel_open(&channel, flow, &options), "no channel");
	return Channel(channel);
}

/* Sends up to `left` datagrams, numbered from `first`, and gives how many. */
unsigned long send_batch(kopi_channel *channel, std::uint32_t flow, unsigned long first,
			 unsigned long left)
{
	std::array<kopi_frame, 64> frames;
	unsigned int wanted = left < frames.size() ? left : frames.size();
	int count = check(kopi_reserve(channel, flow, frames.data(), wanted), "frames");

	for (int i = 0; i < count; i++)
		frames[i].len = std::snprintf(static_cast<char *>(frames[i].data), frames[i].capacity,
					      "%08lu\n", first + i);
	int sent = kopi_commit(channel, frames.data(), count);
	if (sent == -EAGAIN)
		sent = 0;
	kopi_release(channel, frames.data() + check(sent, "commit"), count - sent);
	return sent;
}

/* Sleeps until one of the events is there. */
void wait(kopi_channel *channel, kopi_flow *flow, unsigned int events)
{
	/* As long as an error isn't taken, no wait sleeps. The peer may listen later. */
	if (check(kopi_wait(channel, events, nullptr), "wait") & KOPI_ERROR)
		kopi_flow_error(flow);
}

void run(const char *host, const char *port, unsigned long count)
{
	Address to = resolve(host, port);
	Flow flow = connect(*to);
	Channel channel = open(flow.get());
	std::uint32_t number = check(kopi_flow_number(flow.get()), "number");
	kopi_stats stats;

	for (unsigned long done = 0; done < count;) {
		unsigned long sent = send_batch(channel.get(), number, done, count - done);

		done += sent;
		if (!check(kopi_flush(channel.get()), "flush") || !sent)
			wait(channel.get(), flow.get(), KOPI_WRITABLE | KOPI_COMPLETED);
	}
	while (!check(kopi_flush(channel.get()), "flush"))
		wait(channel.get(), flow.get(), KOPI_WRITABLE);
	check(kopi_flow_stats(flow.get(), &stats), "counters");
	std::printf("sent %llu datagrams, %llu bytes, %llu errors\n",
		    static_cast<unsigned long long>(stats.tx_packets),
		    static_cast<unsigned long long>(stats.tx_bytes),
		    static_cast<unsigned long long>(stats.tx_errors));
}

} // namespace

int main(int argc, char **argv)
{
	if (argc != 4) {
		std::fprintf(stderr, "usage: libkopi-send ADDRESS PORT COUNT\n");
		return 2;
	}
	try {
		run(argv[1], argv[2], std::strtoul(argv[3], nullptr, 10));
	} catch (const std::exception &error) {
		std::fprintf(stderr, "libkopi-send: %s\n", error.what());
		return 1;
	}
	return 0;
}
