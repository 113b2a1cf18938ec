//! `cargo xtask nbd-peers`: the tests of other NBD projects, against `sheave serve`. `dev/xtask/nbd-peers` describes
//! them.
//!
//! Owns the lists of tests, and the way to build and run them. Packages of Debian have the sources and the programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail, ensure};
use sheave_guest::debian::{Packages, Root};
use sheave_testkit::certificates::Authority;
use sheave_testkit::hot_loop::Profile;
use sheave_testkit::skip;

use crate::cargo;
use crate::counts::Counts;
use crate::{budgets, workspace};

const PACKAGES: Packages = Packages {
    dir: "nbd-peers",
    packages: &["qemu-utils", "libnbd-dev", "libglib2.0-dev", "libgnutls28-dev"],
    sources: &[("nbd", &[]), ("libnbd", &[]), ("qemu", &["tests/qemu-iotests", "python"])],
    cure: "`cargo xtask nbd-peers`",
};

/// Tests of nbd-tester-client, each a name and its arguments. The trace of `integrity` begins with a disk of zeroes, so
/// that test comes first.
const TESTER: &[(&str, &str)] = &[
    ("integrity", "-i -t $TRACES/integrity-test.tr"),
    ("throughput", ""),
    ("write", "-w"),
    ("flush", "-w -f"),
    ("cfgsize", "-o"),
    ("handshake", "-h"),
];

/// A program of libnbd, which starts `server.sh`.
struct Interop {
    name: &'static str,
    source: &'static str,
    /// Macros without a value that the source wants.
    flags: &'static [&'static str],
    /// Macros with a value.
    values: &'static [(&'static str, &'static str)],
    /// True if the program gets the server as arguments. Others have it compiled in.
    has_arguments: bool,
}

const INTEROP: &[Interop] = &[
    Interop {
        name: "the default export",
        source: "interop",
        flags: &["NEEDS_TMPFILE", "SOCKET_ACTIVATION"],
        values: &[("SERVER_PARAMS", "TMPFILE")],
        has_arguments: false,
    },
    Interop {
        name: "an export by name",
        source: "interop",
        flags: &["NEEDS_TMPFILE", "SOCKET_ACTIVATION"],
        values: &[("SERVER_PARAMS", "TMPFILE"), ("EXPORT_NAME", "\"disk\"")],
        has_arguments: false,
    },
    Interop {
        name: "an export that is not there",
        source: "interop",
        flags: &["NEEDS_TMPFILE", "SOCKET_ACTIVATION", "EXPECT_FAIL"],
        values: &[("SERVER_PARAMS", "TMPFILE"), ("EXPORT_NAME", "\"none\"")],
        has_arguments: false,
    },
    Interop {
        name: "the list of exports",
        source: "list-exports",
        flags: &["NEEDS_TMPFILE", "SOCKET_ACTIVATION"],
        values: &[("SERVER_PARAMS", "TMPFILE"), ("EXPORTS", "\"disk\""), ("DESCRIPTIONS", "\"1 KiB\"")],
        has_arguments: false,
    },
    Interop {
        name: "socket activation",
        source: "socket-activation",
        flags: &[],
        values: &[("SERVER_PARAMS", "tmpfile")],
        has_arguments: false,
    },
    Interop {
        name: "extended headers and structured replies",
        source: "opt-extended-headers",
        flags: &[],
        values: &[],
        has_arguments: true,
    },
];

/// Tests of `check -raw -nbd` that pass with qemu-nbd of the same release, and start it for a raw image.
const IOTESTS: &[&str] = &[
    "001",
    "002",
    "003",
    "004",
    "005",
    "008",
    "009",
    "010",
    "011",
    "021",
    "032",
    "033",
    "077",
    "104",
    "123",
    "197",
    "215",
    "259",
    "regression-vhdx-log",
];

pub fn main(args: &[String]) -> Result<()> {
    ensure!(args.is_empty(), "usage: cargo xtask nbd-peers");
    budgets::build(Profile::Release)?;
    let mut counts = Counts::default();
    let ran = run(&workspace::target_dir().join("release/sheave"), &mut counts);
    println!("{counts}");
    ran
}

/// Runs all tests with the given program.
pub fn run(sheave: &Path, counts: &mut Counts) -> Result<()> {
    let root = match PACKAGES.ensure() {
        Ok(root) => root,
        Err(error) => {
            println!("{}the tests of other NBD projects: {error:#}", skip::PREFIX);
            counts.skipped += 1;
            return Ok(());
        }
    };
    let dir = PACKAGES.directory().join("run");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(dir.join("include"))?;
    let mut peers = Peers { root, dir, sheave: sheave.to_owned(), counts, failures: Vec::new() };
    peers.find_headers()?;
    peers.nbd()?;
    peers.libnbd()?;
    peers.qemu()?;
    let Peers { failures, dir, .. } = peers;
    ensure!(failures.is_empty(), "{}; what the servers said is in {}", failures.join(", "), dir.display());
    Ok(())
}

struct Peers<'a> {
    root: Root,
    /// Directory of built programs and of the disks.
    dir: PathBuf,
    sheave: PathBuf,
    counts: &'a mut Counts,
    failures: Vec<String>,
}

impl Peers<'_> {
    fn own(name: &str) -> PathBuf {
        workspace::root().join("dev/xtask/nbd-peers").join(name)
    }

    fn library(&self, name: &str) -> PathBuf {
        self.root.join("usr/lib/x86_64-linux-gnu").join(name)
    }

    /// Makes a directory with the headers of the libraries, and without those of the C library, which are the host's.
    fn find_headers(&self) -> Result<()> {
        for name in ["glib-2.0", "gnutls", "libnbd.h"] {
            let from = self.root.join("usr/include").join(name);
            std::os::unix::fs::symlink(from, self.dir.join("include").join(name))?;
        }
        Ok(())
    }

    fn tell(&mut self, name: &str, said: Result<()>) {
        match said {
            Ok(()) => {
                self.counts.passed += 1;
                println!("ok      {name}");
            }
            Err(error) => {
                self.counts.failed += 1;
                println!("FAILED  {name}: {error:#}");
                self.failures.push(name.to_owned());
            }
        }
    }

    /// Returns the C compiler with what all programs need. They are linked with libraries that want a newer C library
    /// than the host's may be, and run with that one.
    fn compiler(&self, includes: &[PathBuf]) -> Command {
        let mut command = Command::new("cc");
        command.args(["-w", "-O1", "-Wl,--allow-shlib-undefined", "-I"]).arg(self.dir.join("include"));
        includes.iter().for_each(|dir| _ = command.arg("-I").arg(dir));
        command
    }

    /// Runs `sheave` with the words of a line, in the directory of the disks.
    fn sheave(&self, line: &str) -> Result<()> {
        let mut command = Command::new(&self.sheave);
        command.args(line.split_whitespace()).current_dir(&self.dir);
        quiet(command)
    }

    fn nbd(&mut self) -> Result<()> {
        let source = self.root.join("usr/src/nbd");
        let traces = source.join("tests/run");
        let program = self.dir.join("nbd-tester-client");
        let includes =
            [Self::own(""), source.clone(), self.dir.join("include/glib-2.0"), self.library("glib-2.0/include")];
        let mut compile = self.compiler(&includes);
        compile.arg(traces.join("nbd-tester-client.c"));
        compile.args(["cliserv.c", "buffer.c", "crypto-gnutls.c"].map(|file| source.join(file)));
        compile.arg("-o").arg(&program).arg(self.library("libglib-2.0.so.0")).arg(self.library("libgnutls.so.30"));
        quiet(compile)?;
        let client = self.root.start("nbd-tester-client", program);
        let client: Vec<String> = client.iter().map(|word| format!("'{}'", word.display())).collect();
        let client = client.join(" ");
        fs::File::create(self.dir.join("disk"))?.set_len(64 << 20)?;
        self.sheave("pool create pool --size 256M")?;
        self.sheave("volume create pool#volume --size 64M")?;
        self.sheave("volume snapshot pool#volume@then")?;
        let run = |peers: &Self, spec: &str, options: &str, command: &str| {
            let mut server = Command::new(&peers.sheave);
            server.args(["serve", spec, "--name", "disk"]).args(options.split_whitespace());
            server.args(["--run", &format!("timeout 120 {client} -N disk {command}")]);
            server.current_dir(&peers.dir).env("TRACES", &traces);
            quiet(server)
        };
        for spec in ["pool#volume", "file:disk", "ram:size=64M"] {
            for (name, arguments) in TESTER {
                let said = run(self, spec, "--nbd unix:socket", &format!("{arguments} -u socket"));
                self.tell(&format!("nbd: {name}, {spec}"), said);
            }
        }
        let said = run(self, "pool#volume@then", "--nbd unix:socket", "-w -F -u socket");
        self.tell("nbd: rowrite, pool#volume@then", said);
        let (ours, others) = (Authority::new(), Authority::new());
        let (server, client, stranger) =
            (ours.server(), ours.issue("client", "a client"), others.issue("client", "a client"));
        let server = server.display();
        let options = format!(
            "--nbd tcp:127.0.0.1:0 --tls-cert {server}/server-cert.pem --tls-key {server}/server-key.pem \
             --tls-ca {server}/ca-cert.pem"
        );
        let command = |of: &Path| {
            let (of, integrity) = (of.display(), TESTER[0].1);
            format!(
                "{integrity} -C {of}/client-cert.pem -K {of}/client-key.pem -A {server}/ca-cert.pem -H localhost \
                 127.0.0.1 $(expr $uri : '.*:\\([0-9]*\\)/')"
            )
        };
        let said = run(self, "ram:size=64M", &options, &command(&client));
        self.tell("nbd: tls, ram:size=64M", said);
        let said = match run(self, "ram:size=64M", &options, &command(&stranger)) {
            Ok(()) => Err(anyhow!("a client with a certificate of another authority was let in")),
            Err(_) => Ok(()),
        };
        self.tell("nbd: tlswrongcert, ram:size=64M", said);
        Ok(())
    }

    fn libnbd(&mut self) -> Result<()> {
        let source = self.root.join("usr/src/libnbd");
        let server = Self::own("server.sh");
        for test in INTEROP {
            let program = self.dir.join(test.source);
            let includes = ["common/include", "interop", "tests"].map(|dir| source.join(dir));
            let mut compile = self.compiler(&[&[Self::own("")], &includes[..]].concat());
            compile.arg(format!("-DSERVER=\"{}\"", server.display()));
            compile.args(test.flags.iter().map(|flag| format!("-D{flag}=1")));
            compile.args(test.values.iter().map(|(name, value)| format!("-D{name}={value}")));
            compile.arg(source.join("interop").join(test.source).with_extension("c"));
            compile.arg(source.join("tests/requires.c")).arg("-o").arg(&program).arg(self.library("libnbd.so.0"));
            quiet(compile)?;
            let words = self.root.start(test.source, program);
            let mut command = Command::new("timeout");
            command.arg("60").args(words).current_dir(&self.dir);
            if test.has_arguments {
                command.arg(&server).arg("disk");
            }
            command.env("SHEAVE", &self.sheave).env("SERVED", self.dir.join("served"));
            self.tell(&format!("libnbd: {} ({})", test.name, test.source), quiet(command));
        }
        Ok(())
    }

    fn qemu(&mut self) -> Result<()> {
        let mut command = Command::new("python3");
        command.arg("check").args(["-j", &cargo::test_threads(), "-raw", "-nbd"]).args(IOTESTS);
        command.current_dir(self.root.join("usr/src/qemu/tests/qemu-iotests"));
        let tools = [("IMG", "qemu-img"), ("IO", "qemu-io"), ("NBD", "qemu-nbd"), ("", "qemu-storage-daemon")];
        for (variable, name) in tools {
            let script = self.launcher(name)?;
            match variable {
                "NBD" => command.env("REAL_QEMU_NBD", script),
                "" => command.env("QSD_PROG", script),
                _ => command.env(format!("QEMU_{variable}_PROG"), script),
            };
        }
        command.env("QEMU_PROG", Self::own("qemu-system.sh")).env("QEMU_NBD_PROG", Self::own("qemu-nbd.sh"));
        // Some tests take no path with a dot in it, as the target directory and TMPDIR may have.
        let disks = PathBuf::from(format!("/tmp/sheave-iotests-{}", std::process::id()));
        command.env("TEST_DIR", &disks);
        let served = self.dir.join("served");
        command.env("SHEAVE", &self.sheave).env("SERVED", &served);
        let (said, errors, _) = cargo::capture(command)?;
        fs::remove_dir_all(disks)?;
        let results = results(&said);
        for name in IOTESTS {
            let said = match results.iter().find(|(test, _)| test == name) {
                Some((_, "pass")) => Ok(()),
                Some((_, result)) => Err(anyhow!("{result}\n{said}")),
                None => Err(anyhow!("it did not run\n{said}{errors}")),
            };
            self.tell(&format!("qemu: iotest {name}"), said);
        }
        // A script that always took the real qemu-nbd would let all of them pass.
        let images = fs::read_to_string(&served).unwrap_or_default();
        let unserved = IOTESTS.iter().filter(|name| !images.contains(&format!("raw-nbd-{name}/")));
        let unserved: Vec<_> = unserved.copied().collect();
        ensure!(unserved.is_empty(), "no image of these tests was served by sheave: {}", unserved.join(", "));
        Ok(())
    }

    /// Makes a script that starts a program of the packages, for callers that want one path.
    fn launcher(&self, name: &str) -> Result<PathBuf> {
        let words = self.root.program(name)?;
        let words: Vec<String> = words.iter().map(|word| format!("'{}'", word.display())).collect();
        let path = self.dir.join(name);
        fs::write(&path, format!("#!/bin/sh\nexec {} \"$@\"\n", words.join(" ")))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(path)
    }
}

/// Returns the tests in the output of `check`, with their results.
fn results(said: &str) -> Vec<(&str, &str)> {
    let lines = said.split(['\n', '\r']).map(|line| line.split_whitespace());
    let pairs = lines.filter_map(|mut words| Some((words.next()?, words.next()?)));
    pairs.filter(|(_, result)| ["pass", "fail", "not"].contains(result)).collect()
}

/// Runs a command. Fails with its output if it fails.
fn quiet(command: Command) -> Result<()> {
    let shown = cargo::show(&command);
    let (out, errors, success) = cargo::capture(command).with_context(|| shown.clone())?;
    if !success {
        bail!("{shown}\n{out}{errors}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_those_of_ended_tests() {
        let said = "QEMU -- \"x\"\n\n001   started    [17:38:21]   ...\r\
                    001   pass   [17:38:21] [17:38:24]   3.6s\n\
                    x-y   fail   [17:38:21] [17:38:24]   output mismatch\n\
                    297   not run   [17:38:21]   no pylint\nPassed all 1 iotests\n";
        assert_eq!(results(said), [("001", "pass"), ("x-y", "fail"), ("297", "not")]);
    }
}
