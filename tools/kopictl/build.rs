// SPDX-License-Identifier: GPL-2.0

//! Compiles what kopictl loads into the kernel.

use std::{env, path::PathBuf, process::Command};

const PROGRAMS: [&str; 2] = ["redirect", "enforce"];
const INTERFACE: &str = "../../uapi";

fn main() {
    println!("cargo::rerun-if-changed={INTERFACE}/kopi.h");
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    for name in PROGRAMS {
        let source = format!("src/bpf/{name}.bpf.c");
        println!("cargo::rerun-if-changed={source}");
        let status = Command::new("clang")
            .args(["--target=bpf", "-O2", "-g", "-Wall", "-Werror"])
            // Where Debian has <asm/types.h>.
            .arg("-I/usr/include/x86_64-linux-gnu")
            .args(["-I", INTERFACE, "-c", &source, "-o"])
            .arg(folder.join(format!("{name}.bpf.o")))
            .status()
            .expect("clang is needed to build kopictl");
        assert!(status.success(), "clang can't compile {source}");
    }
}
