// SPDX-License-Identifier: GPL-2.0

//! Compiles what kopictl loads into the kernel.

use std::{env, path::PathBuf, process::Command};

const SOURCE: &str = "src/bpf/redirect.bpf.c";
const INTERFACE: &str = "../../uapi";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    println!("cargo::rerun-if-changed={INTERFACE}/kopi.h");
    let folder = env::var_os("OUT_DIR").expect("cargo sets it");
    let object = PathBuf::from(folder).join("redirect.bpf.o");
    let status = Command::new("clang")
        .args(["--target=bpf", "-O2", "-g", "-Wall", "-Werror"])
        // Where Debian has <asm/types.h>.
        .arg("-I/usr/include/x86_64-linux-gnu")
        .args(["-I", INTERFACE, "-c", SOURCE, "-o"])
        .arg(&object)
        .status()
        .expect("clang is needed to build kopictl");
    assert!(status.success(), "clang can't compile {SOURCE}");
}
