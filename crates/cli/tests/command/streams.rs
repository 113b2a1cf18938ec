//! `-` of copies that a daemon makes: stdin and stdout stand somewhere, also where they are files.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sheave_varlink::Client;

use crate::daemon::{BOTH, Daemon, Nbd, ask, pools, served_ok};
use crate::sheave::{Dir, Said};

/// A line of shell that must succeed, where `$S` is the binary; it finds the daemons of a directory, if one is named.
fn shell(dir: &Dir, line: &str, run: Option<&Path>) -> Said {
    let mut command = Command::new("sh");
    command.args(["-ec", line]).current_dir(dir.path("")).env("S", assert_cmd::cargo::cargo_bin!("sheave"));
    command.env("SHEAVE_RUNTIME_DIR", run.unwrap_or(Path::new("")));
    let said = Said::of(command.output().expect("the shell runs"));
    assert_eq!(said.code, 0, "{line}\n{}", said.err);
    assert_eq!(said.err.contains("is served: asking"), run.is_some(), "{line}\n{}", said.err);
    said
}

/// Lines that write `out`.
const EXPORTS: [&str; 4] = [
    "\"$S\" volume export a.img#v - --progress none >> out",
    "{ printf begin; \"$S\" volume export a.img#v - --progress none; printf end; } > out",
    "\"$S\" volume export-diff a.img#mon - --progress none >> out",
    "{ printf begin; \"$S\" volume export-diff a.img#mon - --progress none; printf end; } > out",
];

/// Lines that read `in`, `odd` or `diff` from somewhere in the middle, and make a volume of `NEW`.
const IMPORTS: [&str; 3] = [
    "{ dd bs=1M count=1 of=skipped status=none; \"$S\" volume import - NEW --progress none; } < in",
    "\"$S\" volume import - NEW --progress none < odd",
    "{ dd bs=5 count=1 of=skipped status=none; \"$S\" volume import-diff - NEW --progress none; } < diff",
];

#[test]
fn a_daemon_goes_on_where_stdin_and_stdout_stand_though_they_are_files() {
    let Some(dir) = pools() else { return };
    let run = dir.path("run");
    let daemon = Daemon::start(&dir, BOTH);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(1 << 20, &[7; 65536]), Some(0));
    served_ok(&dir, "volume snapshot a.img#v mon");
    served_ok(&dir, "volume export a.img#v whole");
    served_ok(&dir, "volume export-diff a.img#mon mon.diff");
    let read = |name: &str| fs::read(dir.path(name)).expect("read");
    let (whole, plain_diff) = (read("whole"), read("mon.diff"));
    let framed = |bytes: &[u8]| [b"begin", bytes, b"end"].concat();
    let wanted = [whole.clone(), framed(&whole), plain_diff.clone(), framed(&plain_diff)];
    let image: Vec<u8> = (0..3 << 20).map(|at: usize| (at >> 16) as u8 + 1).collect();
    fs::write(dir.path("in"), &image).expect("written");
    let odd = [b"QFI\xfb".as_slice(), &[1; 8188]].concat();
    fs::write(dir.path("odd"), &odd).expect("written");
    fs::write(dir.path("diff"), [b"begin", plain_diff.as_slice()].concat()).expect("written");
    let lines_give_it = |served: Option<&Path>, pool: &str| {
        for (line, wanted) in EXPORTS.iter().zip(&wanted) {
            fs::write(dir.path("out"), b"").expect("empty");
            shell(&dir, line, served);
            assert!(read("out") == *wanted, "{line} (served: {})", served.is_some());
        }
        for (line, (name, wanted)) in IMPORTS.iter().zip([("cut", &image[1 << 20..]), ("odd", &odd), ("diff", &whole)])
        {
            shell(&dir, &line.replace("NEW", &format!("{pool}#{name}")), served);
            shell(&dir, &format!("\"$S\" volume export {pool}#{name} back --yes --progress none"), served);
            assert!(read("back") == *wanted, "{line} (served: {})", served.is_some());
        }
    };
    lines_give_it(Some(&run), "b.img");
    // By its own name it is no raw image.
    let refused = ask(&dir, "volume import odd b.img#other");
    assert!(refused.code == 2 && refused.err.contains("is a qcow2 image"), "{}", refused.err);
    daemon.end();
    dir.ok("pool create c.img --size 128M");
    lines_give_it(None, "c.img");
}

#[test]
fn a_file_that_was_opened_to_append_to_is_refused_unless_it_is_passed_as_a_stream() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let append = File::options().append(true).create_new(true).open(dir.path("out")).expect("made");
    let call = |parameters: Value| {
        let mut client = Client::connect(&dir.path("run/control.sock")).expect("it listens");
        client.call_more("io.sheave.Control.ExportVolume", &parameters, &[append.as_fd()], &mut |_| Ok(()))
    };
    let refused = call(json!({ "pool": "a", "volume": "v" }));
    assert!(matches!(&refused, Err(why) if why.to_string().contains("to append to")), "{refused:?}");
    assert_eq!(fs::metadata(dir.path("out")).expect("there").len(), 0);
    call(json!({ "pool": "a", "volume": "v", "stream": true })).expect("it is exported");
    assert_eq!(fs::metadata(dir.path("out")).expect("there").len(), 16 << 20);
    daemon.end();
}
