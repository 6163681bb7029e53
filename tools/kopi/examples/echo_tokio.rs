// SPDX-License-Identifier: GPL-2.0

//! An echo server of tokio's, in batches: `cargo run --features tokio --example echo_tokio -- 127.0.0.1:7777`.

use kopi::{tokio::UdpSocket, Message};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7777".into());
    let socket = UdpSocket::bind(address).await?;
    println!("listening on {}", socket.local_addr()?);
    let mut questions: Vec<(Vec<u8>, Message)> = vec![];
    loop {
        // The first one is waited for, and up to 63 that are there with it.
        socket
            .recv_batch(64, |packet| {
                questions.push((packet.bytes().into_owned(), Message::reply_to(packet)));
            })
            .await?;
        let answers: Vec<_> = questions
            .iter()
            .map(|(data, back)| (&data[..], *back))
            .collect();
        let mut left = &answers[..];
        while !left.is_empty() {
            // A peer that went away is no reason to end.
            let sent = socket.send_batch(left).await.unwrap_or(0);
            left = &left[sent..];
        }
        questions.clear();
    }
}
