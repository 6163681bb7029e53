// SPDX-License-Identifier: GPL-2.0

//! `kopi run`: starts a program whose UDP sockets, and TCP sockets if asked, are KOPI flows.

mod inherited;

use clap::{Args, Parser, Subcommand};
use object::{
    elf::{FileHeader64, ELFCLASS64, EM_X86_64, PT_INTERP},
    read::{
        elf::{FileHeader, ProgramHeader},
        ReadCache, ReadRef,
    },
    Endianness,
};
use std::{
    env,
    ffi::{CString, OsStr, OsString},
    fmt::Display,
    fs,
    io::{self, Write},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    ptr,
};

/// Bytes of a script's first line that are looked at, as by the kernel (BINPRM_BUF_SIZE).
const LINE_MAX: u64 = 256;

/// Mapped packet rings with the kernel on the path, for programs as they are.
#[derive(Parser)]
#[command(name = "kopi", version)]
struct Options {
    #[command(subcommand)]
    command: Action,
}

#[derive(Subcommand)]
enum Action {
    Run(Run),
}

/// Start a program. Its UDP sockets become KOPI flows, which send by channels.
///
/// Where that can't be, the program runs with ordinary sockets. It is this process: exit status, standard
/// streams, process group and signals are the program's.
#[derive(Args)]
#[command(after_help = "Examples:
  kopi run nsd -d
  kopi run --explain iperf3 -c 192.0.2.2 -u
  kopi run --tcp nginx

Exit status: the program's; 126 if it can't be executed, 127 if it isn't found.")]
struct Run {
    /// Have TCP sockets be flows, too; they have no channels
    #[arg(long)]
    tcp: bool,

    /// Say on standard error, once for each process, why it gets ordinary sockets
    #[arg(long, short)]
    verbose: bool,

    /// Report for each socket whether it uses KOPI, and why not
    #[arg(long)]
    explain: bool,

    /// A UDP socket sends this many datagrams before it is put on a channel
    #[arg(long, value_name = "N", default_value_t = 32)]
    min_datagrams: u32,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

fn main() -> ExitCode {
    match Options::parse().command {
        Action::Run(run) => start(&run),
    }
}

fn start(run: &Run) -> ExitCode {
    let Some((program, arguments)) = run.program.split_first() else {
        return ExitCode::from(2);
    };
    let mut command = Command::new(program);
    command.args(arguments);
    match prepare(program) {
        Ok((library, family)) => {
            command
                .env("LD_PRELOAD", library)
                .env("ASAN_OPTIONS", sanitizer_options())
                .env("KOPI_FAMILY", family.to_string())
                .env("KOPI_RUN_TCP", u8::from(run.tcp).to_string())
                .env("KOPI_RUN_MIN_DATAGRAMS", run.min_datagrams.to_string())
                .env(
                    "KOPI_RUN_TALK",
                    (u8::from(run.verbose) + 2 * u8::from(run.explain))
                        .min(2)
                        .to_string(),
                );
        }
        // Not only with --verbose: it was asked for, and isn't so.
        Err(why) => complain(program, format_args!("ordinary sockets: {why}")),
    }
    let error = inherited::exec(&mut command);
    complain(program, &error);
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    })
}

/// Says what is wrong with a program. If that can't be written, there is nobody to tell, and the program is to run.
fn complain(program: &OsStr, what: impl Display) {
    let _ = writeln!(
        io::stderr(),
        "kopi run: {}: {what}",
        Path::new(program).display()
    );
}

/// The libraries to preload, and the family's number; or why there is no use in that.
fn prepare(program: &OsStr) -> Result<(OsString, i32), String> {
    if let Some(file) = find(program) {
        check(&file, 4)?;
    }
    let family = kopi::family().map_err(|error| error.to_string())?;
    let mut libraries = library()?.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        libraries.push(":");
        libraries.push(others);
    }
    Ok((libraries, family))
}

/// AddressSanitizer refuses to start when a preloaded library comes before its own. This one calls nothing that
/// it replaces before it is ready. What the user says comes later, and so holds.
fn sanitizer_options() -> OsString {
    let mut options = OsString::from("verify_asan_link_order=0");
    if let Some(others) = env::var_os("ASAN_OPTIONS").filter(|others| !others.is_empty()) {
        options.push(":");
        options.push(others);
    }
    options
}

/// The file that the shell would execute.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|file| {
            fs::metadata(file).is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
        })
}

/// Whether a library can be preloaded into a program; a script is as its interpreter.
fn check(file: &Path, depth: u32) -> Result<(), String> {
    let Ok(opened) = fs::File::open(file) else {
        // What is wrong, exec() says.
        return Ok(());
    };
    // Of a large program, no more than is looked at.
    let cache = ReadCache::new(opened);
    let data = &cache;
    let length = data.len().unwrap_or(0).min(LINE_MAX);
    let beginning = data.read_bytes_at(0, length).unwrap_or(&[]);
    if fs::metadata(file).is_ok_and(|it| it.permissions().mode() & 0o6000 != 0) {
        return Err("set-user-ID programs load no libraries of their callers".into());
    }
    if let Some(line) = beginning.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or(&[]);
        let mut words = line
            .split(|byte| byte.is_ascii_whitespace())
            .filter(|word| !word.is_empty());
        let interpreter = words.next().unwrap_or(&[]);
        return match depth {
            0 => Ok(()),
            _ => check(Path::new(OsStr::from_bytes(interpreter)), depth - 1),
        };
    }
    if !beginning.starts_with(b"\x7fELF") {
        return Ok(());
    }
    if !is_superuser() && has_capabilities(file) {
        return Err("programs with capabilities load no libraries of their callers".into());
    }
    check_elf(data)
}

/// Whether capabilities of a file's add nothing to what the caller has.
fn is_superuser() -> bool {
    // SAFETY: It only gives a number.
    unsafe { libc::getuid() == 0 }
}

/// Whether a file has capabilities: setcap(8).
fn has_capabilities(file: &Path) -> bool {
    let Ok(name) = CString::new(file.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: Strings that end with a zero, and no place for the value, whose length is asked.
    unsafe {
        libc::getxattr(
            name.as_ptr(),
            c"security.capability".as_ptr(),
            ptr::null_mut(),
            0,
        ) > 0
    }
}

fn check_elf<'data>(data: impl ReadRef<'data>) -> Result<(), String> {
    if data.read_bytes_at(4, 1) != Ok(&[ELFCLASS64]) {
        return Err("it is a 32-bit program, and the library is of 64 bits".into());
    }
    let unreadable = |_| "its ELF headers make no sense".to_string();
    let header = FileHeader64::<Endianness>::parse(data).map_err(unreadable)?;
    let endian = header.endian().map_err(unreadable)?;
    if header.e_machine(endian) != EM_X86_64 {
        return Err("it is for another processor than the library".into());
    }
    let segments = header.program_headers(endian, data).map_err(unreadable)?;
    let interpreter = segments
        .iter()
        .find(|segment| segment.p_type(endian) == PT_INTERP)
        .and_then(|segment| segment.data(endian, data).ok());
    match interpreter {
        None => Err("it is statically linked, and loads no libraries".into()),
        Some(name) if name.windows(7).any(|part| part == b"ld-musl") => {
            Err("it uses another C library (musl) than this one".into())
        }
        Some(_) if is_go(header, endian, data) => {
            Err("it is a Go program, which makes system calls without the C library".into())
        }
        Some(_) => Ok(()),
    }
}

fn is_go<'data>(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    data: impl ReadRef<'data>,
) -> bool {
    header
        .sections(endian, data)
        .is_ok_and(|sections| sections.section_by_name(endian, b".go.buildinfo").is_some())
}

/// The library: beside this program, or where both are installed.
fn library() -> Result<PathBuf, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [
        folder.join("libkopi_preload.so"),
        folder.join("../lib/libkopi-preload.so"),
        folder.join("../lib/kopi/libkopi-preload.so"),
    ];
    let found = places
        .iter()
        .find(|place| place.exists())
        .map(|place| fs::canonicalize(place).unwrap_or(place.clone()))
        .ok_or_else(|| {
            format!(
                "there is no libkopi-preload.so beside {}",
                program.display()
            )
        })?;
    check_name(&found)?;
    Ok(found)
}

/// Whether LD_PRELOAD can name a library: the loader parts it there, and goes on without what it doesn't find.
fn check_name(library: &Path) -> Result<(), String> {
    let bytes = library.as_os_str().as_bytes();
    if bytes.iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(format!(
            "the loader takes no library with a space or a colon in its path, as {} has",
            library.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_the_loader_would_not_find_are_told() {
        assert_eq!(check_name(Path::new("/usr/lib/libkopi-preload.so")), Ok(()));
        for path in ["/home/a b/x.so", "/home/a:b/x.so"] {
            let why = check_name(Path::new(path)).unwrap_err();
            assert!(why.contains(path), "{why}");
        }
    }
}
