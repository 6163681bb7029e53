// SPDX-License-Identifier: GPL-2.0

//! `kopi.h`, the list of symbols, the manual page and the built library against each other and against
//! Rust.

use kopi::pure::abi::Meta;
use kopi_c::{Completion, Frame, Options};
use std::{
    collections::BTreeSet,
    env, fs,
    mem::{offset_of, size_of},
    path::{Path, PathBuf},
    process::Command,
};

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    fs::read_to_string(here().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn scratch(name: &str) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    path.to_str().expect("a path in UTF-8").into()
}

/// Runs a program, whose failure is the test's, and gives what it prints.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}: these tests need a C compiler"));
    let (said, failure) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success(),
        "{program} {arguments:?}:\n{failure}"
    );
    String::from_utf8(said).unwrap()
}

/// Compiles with the header in reach, and every warning an error.
fn compile(variable: &str, compiler: &str, arguments: &[&str]) {
    let compiler = env::var(variable).unwrap_or(compiler.into());
    let include = here().join("include");
    let strict = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-I"];
    let include = [include.to_str().unwrap()];
    run(&compiler, &[&strict[..], &include, arguments].concat());
}

/// A struct's size, and its fields' offsets, as C and as Rust have them.
macro_rules! compare {
    ($program:ident, $type:ident = $name:literal, $($field:ident),*) => {
        $program += &format!(
            "_Static_assert(sizeof(struct {0}) == {1}, \"{0}\");\n", $name, size_of::<$type>());
        $($program += &format!(
            "_Static_assert(offsetof(struct {0}, {1}) == {2}, \"{0}.{1}\");\n",
            $name, stringify!($field), offset_of!($type, $field));)*
        // Each field of the header is among them.
        let fields = [$(stringify!($field)),*];
        assert_eq!(fields_of($name), fields, "fields of {}", $name);
    };
}

/// The header's code: no comments, no preprocessor.
fn header() -> String {
    let mut code = String::new();
    for part in read("include/kopi.h").split("/*") {
        code += part.split_once("*/").map_or(part, |(_, code)| code);
    }
    let lines = code.split_inclusive('\n');
    lines.filter(|line| !line.starts_with('#')).collect()
}

fn fields_of(name: &str) -> Vec<String> {
    let header = header();
    let (_, body) = header.split_once(&format!("struct {name} {{")).unwrap();
    let (body, _) = body.split_once('}').unwrap();
    body.split(';')
        .filter_map(|field| field.split(['*', ' ', '\t', '\n']).next_back())
        .map(|field| field.split('[').next().unwrap().to_string())
        .filter(|field| !field.is_empty())
        .collect()
}

#[test]
fn structs_are_those_of_rust() {
    let mut program = String::from("#include <kopi.h>\n");
    compare!(
        program,
        Options = "kopi_options",
        flags,
        frame_size,
        frames,
        rx_frames,
        tx_entries,
        rx_entries,
        reserved
    );
    compare!(
        program,
        Frame = "kopi_frame",
        data,
        meta,
        len,
        capacity,
        flow,
        flags,
        id,
        reserved
    );
    compare!(
        program,
        Completion = "kopi_completion",
        flow,
        id,
        len,
        flags,
        error
    );
    for (name, value) in [
        ("sizeof(struct kopi_meta)", size_of::<Meta>() as u64),
        ("KOPI_NO_FRAMES", kopi_c::NO_FRAMES.into()),
        ("KOPI_READABLE", kopi_c::READABLE.into()),
        ("KOPI_WRITABLE", kopi_c::WRITABLE.into()),
        ("KOPI_COMPLETED", kopi_c::COMPLETED.into()),
        ("KOPI_ERROR", kopi_c::ERROR.into()),
    ] {
        program += &format!("_Static_assert({name} == {value}, \"{name}\");\n");
    }
    // No struct is forgotten.
    assert_eq!(
        header().matches("{\n").count() - 1,
        3,
        "structs, but for extern \"C\""
    );
    let source = scratch("structs.c");
    fs::write(&source, program).unwrap();
    compile("CC", "cc", &["-std=c11", "-fsyntax-only", &source]);
}

#[test]
fn header_is_c11_and_cxx17_by_itself() {
    for (variable, compiler, standard, name) in [
        ("CC", "cc", "-std=c11", "alone.c"),
        ("CXX", "c++", "-std=c++17", "alone.cc"),
    ] {
        let source = scratch(name);
        fs::write(&source, "#include <kopi.h>\nint kopi_alone;\n").unwrap();
        compile(variable, compiler, &[standard, "-fsyntax-only", &source]);
    }
}

/// The code of the document, in C; the crate's tests compile that in Rust.
#[test]
fn code_of_the_document_compiles() {
    let document = read("../../docs/programming.md");
    let blocks: Vec<&str> = document.split("```c\n").skip(1).collect();
    assert!(!blocks.is_empty());
    for block in blocks {
        let source = scratch("document.c");
        fs::write(&source, block.split("```").next().unwrap()).unwrap();
        compile("CC", "cc", &["-std=c11", "-fsyntax-only", &source]);
    }
}

/// What the header declares, a line each.
fn prototypes() -> BTreeSet<String> {
    let words = header().split_whitespace().collect::<Vec<_>>().join(" ");
    words
        .split(';')
        .filter(|text| text.contains("kopi_") && text.contains('('))
        .map(|text| {
            let text = text.rsplit(['{', '}']).next().unwrap_or(text);
            format!("{};", text.trim())
        })
        .collect()
}

/// Version and prototype of each symbol.
fn symbols() -> BTreeSet<(String, String)> {
    read("symbols")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_once(' ').unwrap())
        .map(|(version, prototype)| (version.into(), prototype.into()))
        .collect()
}

fn name_of(prototype: &str) -> &str {
    let (head, _) = prototype.split_once('(').unwrap();
    head.rsplit([' ', '*']).next().unwrap()
}

#[test]
fn symbols_are_what_the_header_declares() {
    let listed: BTreeSet<String> = symbols().into_iter().map(|(_, text)| text).collect();
    assert_eq!(prototypes(), listed);
}

#[test]
fn manual_page_and_header_speak_of_each_symbol() {
    let (page, header) = (read("libkopi.3"), read("include/kopi.h"));
    for prototype in prototypes() {
        let name = name_of(&prototype);
        assert!(
            page.contains(&format!("\n.BI \"{}", prototype.split('(').next().unwrap())),
            "{name}"
        );
        let comment = [
            format!("{name} - "),
            format!("{name}, "),
            format!(", {name} "),
        ];
        assert!(
            comment.iter().any(|comment| header.contains(comment)),
            "{name}"
        );
    }
}

/// The static archive, which cargo puts beside the tests.
fn archive() -> PathBuf {
    let test = env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let found = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("libkopi_c") && name.ends_with(".a")
        });
    found
        .max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap())
        .expect("libkopi_c.a beside the test")
}

/// Links the library into a folder of that name, which it gives.
fn linked(name: &str) -> String {
    let folder = scratch(name);
    let link = here().join("link");
    run(
        link.to_str().unwrap(),
        &[archive().to_str().unwrap(), &folder],
    );
    folder
}

#[test]
fn library_exports_the_symbols_and_no_others() {
    let prefix = linked("prefix");
    let library = format!("{prefix}/lib/libkopi.so.1");
    let exported: BTreeSet<(String, String)> = run("nm", &["-D", "--defined-only", &library])
        .lines()
        .map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>())
        // The versions' own.
        .filter(|words| words.first() != Some(&"A"))
        .map(|words| words[1].split_once("@@").unwrap_or((words[1], "none")))
        .map(|(name, version)| (version.into(), name.into()))
        .collect();
    let listed: BTreeSet<(String, String)> = symbols()
        .into_iter()
        .map(|(version, prototype)| (version, name_of(&prototype).into()))
        .collect();
    assert_eq!(exported, listed);
    // Nothing that C could call was left out of the list.
    let all = run("nm", &["--defined-only", "-g", archive().to_str().unwrap()]);
    let written: BTreeSet<&str> = all
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .filter(|name| name.starts_with("kopi_"))
        .collect();
    let names: BTreeSet<&str> = listed.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(written, names);
    let dynamic = run("readelf", &["-d", &library]);
    assert!(dynamic.contains("Library soname: [libkopi.so.1]"));
}

/// Wherever the folder lies: it is moved after it was made.
#[test]
fn pkg_config_finds_the_library() {
    let (made, moved) = (linked("made"), scratch("moved"));
    if Path::new(&moved).exists() {
        fs::remove_dir_all(&moved).unwrap();
    }
    fs::rename(made, &moved).unwrap();
    let pc = format!("{moved}/lib/pkgconfig/kopi.pc");
    let version = run("pkg-config", &["--modversion", &pc]);
    assert_eq!(version.trim(), env!("CARGO_PKG_VERSION"));
    let flags = run("pkg-config", &["--cflags", "--libs", &pc]);
    let (source, program) = (scratch("linked.c"), scratch("linked"));
    let text = "#include <kopi.h>\nint main(void) { return !kopi_strerror(0); }\n";
    fs::write(&source, text).unwrap();
    let mut arguments = vec![source.as_str(), "-o", &program];
    arguments.extend(flags.split_whitespace());
    run(&env::var("CC").unwrap_or("cc".into()), &arguments);
}
