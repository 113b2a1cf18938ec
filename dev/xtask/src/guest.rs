//! `cargo xtask guest`: runs a shell script in a Linux guest, and ends with its exit status.
//!
//! Owns the command line. `sheave_guest` makes and runs the guest.

use std::path::PathBuf;
use std::process::exit;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use sheave_guest::{Boot, Ended, Kit};

const USAGE: &str = "\
usage: cargo xtask guest [OPTION]... SCRIPT [FILE]...
       cargo xtask guest --install

Boots Linux in QEMU, runs SCRIPT there with the FILEs in its root directory, and prints its output. Exit status: that of
SCRIPT, 124 if its time is up, 125 if it never began. `dev/guest/README.md` describes the guest.

  --vhost-user SOCKET  a vhost-user-blk disk, served by a back end that listens there
  --queues N           number of its queues (1)
  --queue-size N       entries of each queue (128)
  --disk FILE          a virtio disk that QEMU serves
  --nvme FILE          an NVMe device that QEMU serves
  --memory MIB         size of the memory (768)
  --cpus N             number of CPUs (2)
  --timeout SECONDS    time after which the guest is killed (120)
  --kernel 'WORDS'     more words for the kernel
  --qemu 'WORDS'       more arguments of QEMU
  --qmp SOCKET         a socket for QMP
  --kvm                uses KVM
  --reboots            lets the guest boot again after a reset
  --install            downloads what guests are made of, and ends";

pub fn main(args: &[String]) -> Result<()> {
    if args == ["--install"] {
        return install().map(drop);
    }
    if args == ["--help"] {
        println!("{USAGE}");
        return Ok(());
    }
    let boot = parse(args)?;
    let mut guest = boot.start_with(&install()?)?;
    while let Some(line) = guest.next_line() {
        println!("{line}");
    }
    let ended = guest.end();
    report(&ended);
    exit(ended.code)
}

/// Returns what guests are made of. Downloads it below the target directory first if it is missing.
pub fn install() -> Result<Kit> {
    if let Err(missing) = Kit::find() {
        println!("guest: {missing:#}; downloading 130 MB into {}", sheave_guest::directory().display());
    }
    sheave_guest::ensure()
}

fn report(ended: &Ended) {
    let seconds = ended.took.as_secs_f64();
    match &ended.booted {
        Some(booted) => eprintln!("guest: booted (clock in s, kernel): {booted}; {seconds:.1} s in all"),
        None => eprintln!("guest: never came up, in {seconds:.1} s"),
    }
}

fn parse(args: &[String]) -> Result<Boot> {
    let (mut options, mut disks, mut queues, mut queue_size) = (Vec::new(), Vec::new(), 1, 128);
    let mut args = args.iter();
    let script = loop {
        let arg = args.next().context(USAGE)?.as_str();
        match arg {
            "--kvm" | "--reboots" => options.push((arg, "")),
            _ if !arg.starts_with('-') => break arg,
            _ => {
                let value = args.next().with_context(|| format!("{arg} wants a value\n{USAGE}"))?.as_str();
                match arg {
                    "--queues" => queues = number(arg, value)?,
                    "--queue-size" => queue_size = number(arg, value)?,
                    "--vhost-user" | "--disk" | "--nvme" => disks.push((arg, value)),
                    _ => options.push((arg, value)),
                }
            }
        }
    };
    let mut boot = Boot::new(std::fs::read_to_string(script).with_context(|| format!("reading {script}"))?);
    for (kind, path) in disks {
        boot = match kind {
            "--vhost-user" => boot.vhost_user(path, queues, queue_size),
            "--disk" => boot.disk(path),
            _ => boot.nvme(path),
        };
    }
    for (option, value) in options {
        boot = match option {
            "--memory" => boot.memory_mib(number(option, value)?),
            "--cpus" => boot.cpus(number(option, value)?),
            "--timeout" => boot.limit(Duration::from_secs(number(option, value)?)),
            "--kernel" => boot.kernel(value),
            "--qemu" => boot.qemu(value.split_whitespace()),
            "--qmp" => boot.qemu(["-qmp".to_owned(), format!("unix:{value},server=on,wait=off")]),
            "--kvm" => boot.kvm(),
            "--reboots" => boot.reboots(),
            _ => bail!("no option {option}\n{USAGE}"),
        };
    }
    Ok(args.fold(boot, |boot, file| boot.file(PathBuf::from(file))))
}

fn number<N: std::str::FromStr>(option: &str, value: &str) -> Result<N> {
    value.parse().ok().with_context(|| format!("{option} wants a number, not `{value}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Boot> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_come_before_the_script_and_files_after_it() {
        let boot = parsed("--queues 4 --vhost-user a.sock --cpus 3 --vhost-user b.sock /dev/null --qmp x").unwrap();
        let shown = format!("{boot:?}");
        for words in ["queues: 4", "\"a.sock\"", "\"b.sock\"", "cpus: 3", "files: [\"--qmp\", \"x\"]"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
    }

    #[test]
    fn wrong_lines_are_refused_with_the_reason() {
        for (line, words) in [
            ("--queues 4", "usage: "),
            ("--cpus", "--cpus wants a value"),
            ("--cpus many /dev/null", "--cpus wants a number, not `many`"),
            ("--discs 4 /dev/null", "no option --discs"),
            ("/nowhere", "reading /nowhere"),
        ] {
            let error = parsed(line).unwrap_err().to_string();
            assert!(error.starts_with(words), "{error}");
        }
    }
}
