#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
#
# Tests of the tools and of the module's pure parts, on the host: formatting,
# lints, unit and property tests, and the model of the rings. Works in any
# directory; CARGO_TARGET_DIR is honoured.
set -eu
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-target}

cargo fmt --check
cargo clippy --workspace --all-features --all-targets -- -D warnings
cargo test --workspace --all-features
# The atomics differ under loom, so this must not share a target directory.
RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$target/loom" \
	cargo test -p kopi --release --test loom
