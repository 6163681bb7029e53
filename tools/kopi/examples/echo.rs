// SPDX-License-Identifier: GPL-2.0

//! An echo server in as few lines as it takes: `cargo run --example echo -- 127.0.0.1:7777`.

use kopi::{Channel, Flow, Interest, Message};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7777".into());
    let flow = Flow::bind(address.parse()?)?;
    let channel = Channel::builder().open(&flow)?;
    println!("listening on {}", flow.local_addr()?);
    loop {
        while let Some(packet) = channel.recv()? {
            let (flow, back) = (packet.flow(), Message::reply_to(&packet));
            // What doesn't fit into the ring is dropped, as a network may.
            let _ = channel.send(flow, &back, packet);
        }
        let interest = match channel.flush()? {
            true => Interest::READABLE,
            // The send buffer is full: the rest waits for room.
            false => Interest::READABLE | Interest::WRITABLE,
        };
        if channel.wait(interest, None)?.error {
            // As long as it isn't taken, no wait sleeps.
            if let Some(error) = flow.take_error()? {
                eprintln!("{error}");
            }
        }
    }
}
