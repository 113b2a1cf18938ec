//! Tests of the meaning of job files and of the refused options, and a check that fio reads the files of the
//! repository.

use super::*;

const JOBS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../jobs");

fn job(text: &str) -> Result<Job, LoadError> {
    Job::parse("my.fio", text)
}

/// Parses a job that consists of `lines` and of the lines that a valid job needs.
fn with(lines: &str) -> Result<Job, LoadError> {
    job(&format!("[global]\nioengine=io_uring\n[a]\n{lines}\n"))
}

/// Same as `with`, with an environment variable `SIZE`.
fn with_env(lines: &str) -> Result<Job, LoadError> {
    let env = |name: &str| (name == "SIZE").then(|| "8k".to_owned());
    Job::parse_in("my.fio", &format!("[a]\nioengine=io_uring\n{lines}\n"), &env)
}

const ONCE: Work = Work { endless: false, io_size: None, ios: None, loops: 1 };

#[test]
fn every_option_does_what_it_says() {
    let text = "; a comment\n  # another\n[global]\nioengine=io_uring ; here too\nname=x\ndescription=y z\n\n[peak]\r\n\
                filename=/dev/x#y\nsize=1G\nbuffered=0\nrw=randrw\nrwmixread=70\nbs=512\nnorandommap\nrandseed=9\n\
                iodepth=128\niodepth_batch_submit=32\niodepth_batch_complete_min=16\nhipri=1\nfixedbufs=1\n\
                registerfiles=1\nnumjobs=2\nthread\ngroup_reporting=1\ncpus_allowed=0,3\nsync=dsync\nnumber_ios=7\n\
                loops=3\nruntime=500ms\ninvalidate=0\nstonewall\nkb_base=1024\nrandrepeat=1";
    let expected = Job {
        name: "peak".into(),
        filename: Some("/dev/x".into()),
        size: Some(1 << 30),
        direct: true,
        invalidate: false,
        rw: Rw::Randrw,
        mix: 70,
        bs: 512,
        depth: 128,
        batch: 32,
        complete: 16,
        threads: 2,
        poll: true,
        fixed_buffers: true,
        dsync: true,
        runtime: Some(Duration::from_millis(500)),
        work: Work { ios: Some(7), loops: 3, ..ONCE },
        rate: None,
        seed: Some(9),
        cpus: Some(CpuList(vec![0, 3])),
    };
    assert_eq!(job(text), Ok(expected));
    let timed = with("time_based\nruntime=2m\nrate_iops=1000").expect("a job");
    let endless = Work { endless: true, ..ONCE };
    assert_eq!((timed.runtime, timed.work, timed.rate), (Some(Duration::from_secs(120)), endless, Some(1000)));
}

#[test]
fn what_a_file_leaves_out_is_fios_default() {
    let job = with("filename=/none/there\nsize=4M").expect("a job");
    assert_eq!((job.rw, job.bs, job.depth, job.batch, job.complete, job.threads), (Rw::Read, 4096, 1, 1, 1, 1));
    assert!(!job.direct && job.invalidate && !job.poll && !job.fixed_buffers && !job.dsync);
    assert_eq!((job.runtime, job.work), (None, ONCE));
    assert_eq!(job.spec().as_deref(), Some("file:/none/there,size=4194304,direct=off"));
    let here = with("filename=/dev/null\nsize=4M\ndirect=1").expect("a job");
    assert_eq!(here.spec().as_deref(), Some("file:/dev/null,direct=on"), "it has a size of its own");
}

/// Compares the number of I/Os with the counts of fio 3.33 for the same lines with its engine null.
#[test]
fn a_job_ends_when_fio_ends() {
    let ios = |lines: &str, range: u64| with(lines).map(|job| job.work.ios(range, job.bs)).expect(lines);
    for (lines, range, expected) in [
        ("", 1 << 20, Some(256)),
        ("number_ios=5", 1 << 20, Some(5)),
        ("number_ios=300", 1 << 20, Some(256)),
        ("number_ios=300\nloops=2", 1 << 20, Some(512)),
        ("number_ios=5\nloops=3", 1 << 20, Some(15)),
        ("io_size=2M", 1 << 20, Some(512)),
        ("io_limit=10000", 1 << 20, Some(3)),
        ("io_size=2M\nnumber_ios=5", 1 << 20, Some(5)),
        ("bs=8k", 10000, Some(1)),
        ("runtime=1", 1 << 20, Some(256)),
        ("runtime=1\ntime_based", 1 << 20, None),
        ("runtime=1\ntime_based=0", 1 << 20, Some(256)),
    ] {
        assert_eq!(ios(lines, range), expected, "{lines}");
    }
}

#[test]
fn values_are_those_of_fio() {
    let size = |text: &str| with(&format!("size={text}")).ok().and_then(|job| job.size);
    for (text, bytes) in [
        ("4096", Some(4096)),
        ("4096B", Some(4096)),
        ("4k", Some(4096)),
        ("4KB", Some(4096)),
        ("1m", Some(1 << 20)),
        ("2Gb", Some(2 << 30)),
        ("1T", Some(1 << 40)),
        ("4KiB", Some(4000)),
        ("1mib", Some(1_000_000)),
        ("4ki", None),
        ("1.5k", None),
        ("50%", None),
        ("0x1000", None),
        ("(4*1024)", None),
        ("1 G", None),
        ("-1", None),
        ("", None),
        ("99999999999999999999", None),
        ("99999999999T", None),
    ] {
        assert_eq!(size(text), bytes, "{text}");
    }
    let time = |text: &str| with(&format!("runtime={text}")).ok().and_then(|job| job.runtime);
    for (text, us) in [
        ("10", Some(10_000_000)),
        ("500ms", Some(500_000)),
        ("500MSEC", Some(500_000)),
        ("7us", Some(7)),
        ("2m", Some(120_000_000)),
        ("1h", Some(3_600_000_000)),
        ("1d", Some(86_400_000_000)),
        ("2sec", None),
        ("1.5", None),
        ("0", None),
        ("-1", None),
    ] {
        assert_eq!(time(text), us.map(Duration::from_micros), "{text}");
    }
}

#[test]
fn variables_and_comments_are_those_of_fio() {
    let bs = |lines: &str| with_env(lines).map(|job| job.bs);
    assert_eq!(bs("bs=${SIZE}"), Ok(8192));
    assert_eq!(bs("bs=1${SIZE} ; a comment"), Ok(18 * 1024));
    assert_eq!(bs("bs=16k#${SIZE}"), Ok(16384));
    assert_eq!(with_env("filename=/a${NONE}b$SIZE").expect("a job").filename.as_deref(), Some("/ab$SIZE"));
    assert!(bs("bs=${NONE}").unwrap_err().cause.contains("bs= cannot be"));
    assert!(bs("numjobs=$ncpus").unwrap_err().cause.contains("$ncpus"));
    assert!(bs("bs = 8k").unwrap_err().cause.contains("blank beside ="), "fio reads 8 bytes there");
    assert!(bs("bs= 8k").unwrap_err().cause.contains("blank beside ="));
}

#[test]
fn an_error_says_where_and_what_is_known() {
    let error = with("bs=4k\niodepht=4").unwrap_err();
    assert_eq!(error.cause, "my.fio, line 5, [a]: there is no option iodepht");
    assert!(error.usage && error.fix.expect("a fix").contains("iodepth, "), "the known ones");
    let error = with("bs=1000").unwrap_err();
    assert_eq!(error.cause, "my.fio, line 4, [a]: bs=1000 cannot be");
    assert!(job("x=1\n[a]").unwrap_err().cause.starts_with("my.fio, line 1: x stands before"));
    let error = with("thinktime=5").unwrap_err();
    assert!(error.cause.starts_with("my.fio, line 4, [a]: thinktime is refused: a run is paced by"), "{error}");
    assert!(error.fix.expect("a fix").starts_with("leave it out"));
}

#[test]
fn what_would_be_understood_in_another_way_is_refused() {
    let lines = [
        ("ioengine=libaio", "cannot be"),
        ("filename=/a:/b", "cannot be"),
        ("filename=/a,b", "cannot be"),
        ("filename=-", "cannot be"),
        ("filename", "no value"),
        ("direct", "no value"),
        ("size=0", "cannot be"),
        ("rw=trim", "cannot be"),
        ("rw=read:8", "cannot be"),
        ("rw=rw", "cannot be"),
        ("rw=randread", "once"),
        ("rw=randread\nnorandommap=0", "once"),
        ("rwmixread=101", "cannot be"),
        ("rwmixread=30", "randrw"),
        ("bs=32M", "cannot be"),
        ("bs=4k,8k", "cannot be"),
        ("direct=yes", "cannot be"),
        ("iodepth=0", "cannot be"),
        ("iodepth=5000", "cannot be"),
        ("iodepth_batch=4\niodepth_batch_complete=1", "more than iodepth"),
        ("iodepth=4\niodepth_batch_complete=5", "more than iodepth"),
        ("registerfiles=0", "cannot be"),
        ("thread=0", "cannot be"),
        ("group_reporting=0", "cannot be"),
        ("numjobs=2", "part each"),
        ("cpus_allowed=0-1", "one CPU"),
        ("cpus_allowed=x", "cannot be"),
        ("sync=1", "cannot be"),
        ("time_based", "no runtime"),
        ("time_based\nruntime=5\nnumber_ios=5", "ignores"),
        ("time_based\nruntime=5\nio_size=1M", "ignores"),
        ("time_based\nruntime=5\nloops=2", "ignores"),
        ("loops=2\nio_size=1M", "io_size"),
        ("number_ios=0", "cannot be"),
        ("rate_iops=0", "cannot be"),
        ("rate_iops=1k", "cannot be"),
        ("rw=randrw\nnorandommap\nrate_iops=50", "again that of writes"),
        ("kb_base=1000", "cannot be"),
        ("randrepeat=0", "cannot be"),
        ("[b]", "[b] comes after the job [a]"),
        ("[b", "no section"),
        ("[]", "comes after"),
        ("include other.fio", "include is refused"),
        ("verify=crc32c", "verify is refused"),
        ("offset=1M", "offset is refused"),
    ];
    for (line, why) in lines {
        let error = with(line).expect_err(line);
        assert!(error.cause.contains(why) && error.fix.is_some() && error.usage, "{line}: {error}");
    }
    assert!(job("").unwrap_err().cause.contains("no job"));
    assert!(job("[global]\nbs=4k").unwrap_err().cause.contains("no job"));
    assert!(job("[]\n").unwrap_err().cause.contains("without a name"));
    assert!(job("[globals]\n").unwrap_err().cause.contains("takes [globals] for [global]"));
    assert!(job("[a]\nbs=4k").unwrap_err().cause.contains("fio's default is psync"));
}

#[test]
fn files_that_are_none_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("x.fio");
    assert!(Job::open(&file).unwrap_err().cause.contains("cannot read"));
    std::fs::write(&file, vec![0xff; 100]).expect("written");
    assert!(Job::open(&file).unwrap_err().cause.contains("cannot read"), "no text");
    std::fs::write(&file, vec![b'\n'; MAX_BYTES as usize + 1]).expect("written");
    assert!(Job::open(&file).unwrap_err().cause.contains("more than"));
    assert!(Job::open(Path::new("/dev/zero")).unwrap_err().cause.contains("more than"), "it has no end");
}

/// Returns the names in the first column of that table of the page whose head is `head`.
fn told(head: &str) -> Vec<&'static str> {
    let page = include_str!("../../../../docs/reference/jobs.md");
    let (_, table) = page.split_once(head).expect("a table of that head");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let names = rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2));
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names
}

/// The tables of the page name exactly the accepted options, and the refused ones with their reasons.
#[test]
fn the_page_has_every_option() {
    let mut known: Vec<&str> = SETTINGS.iter().flat_map(|setting| setting.names).copied().collect();
    known.sort_unstable();
    assert_eq!(told("|---|---|---|\n"), known);
    let mut refused: Vec<&str> = REFUSED.iter().flat_map(|group| group.names).copied().collect();
    refused.sort_unstable();
    assert_eq!(told("| option | because |\n|---|---|\n"), refused, "write:\n{}", table_of_refused());
    let twice = refused.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None, "refused for two reasons");
    assert_eq!(refused.iter().find(|name| known.contains(name)), None, "known and refused");
    let page = include_str!("../../../../docs/reference/jobs.md");
    assert!(page.contains(&table_of_refused()), "write:\n{}", table_of_refused());
}

/// Returns the table of refused options like the page has it.
fn table_of_refused() -> String {
    let row = |group: &refused::Refused| {
        let names: Vec<String> = group.names.iter().map(|name| format!("`{name}`")).collect();
        format!("| {} | {} |\n", names.join(", "), group.why)
    };
    REFUSED.iter().map(row).collect()
}

/// Returns the names of the options that fio prints for the argument `help`.
fn names_of(fio: &Path, help: &str) -> Vec<String> {
    let told = std::process::Command::new(fio).arg(help).output().expect("fio starts");
    let text = String::from_utf8(told.stdout).expect("text");
    let names = text.lines().filter(|line| line.contains(" : ") || line.trim_end().ends_with(':'));
    names
        .filter_map(|line| line.trim_start().split([' ', ':']).next().map(str::to_owned))
        .filter(|name| !name.is_empty())
        .collect()
}

#[test]
fn every_option_of_the_real_fio_is_known_or_refused_with_a_reason() {
    let Some(fio) = sheave_testkit::require("fio") else { return };
    let (all, engine) = (names_of(&fio, "--cmdhelp"), names_of(&fio, "--enghelp=io_uring"));
    assert!(all.len() > 150 && engine.len() > 5, "{all:?} {engine:?}");
    let known = |name: &str| SETTINGS.iter().any(|setting| setting.names.contains(&name));
    let missing = all.iter().chain(&engine).filter(|name| !known(name) && refused::reason(name).is_none());
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&String>::new());
}

fn files() -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(JOBS).expect("the jobs of the repository");
    let files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(files.len(), 5, "{files:?}");
    files
}

#[test]
fn the_jobs_of_the_threads_are_read() {
    for file in files() {
        Job::open(&file).unwrap_or_else(|err| panic!("{err}"));
    }
    let peak = Job::open(&Path::new(JOBS).join("bio-cache.fio")).expect("a job");
    assert_eq!((peak.bs, peak.depth, peak.batch, peak.threads), (512, 128, 32, 1));
    assert_eq!(peak.runtime, Some(Duration::from_secs(10)), "a bare number is seconds");
    assert!(peak.poll && peak.fixed_buffers && peak.direct && peak.rw == Rw::Randread);
    let many = Job::open(&Path::new(JOBS).join("in-flight.fio")).expect("a job");
    assert_eq!((many.threads, many.depth), (80, 1));
}

/// Returns true if the real fio accepts a file.
fn fio_takes(fio: &Path, file: &Path) -> bool {
    let mut command = std::process::Command::new(fio);
    command.arg("--parse-only").arg(file).output().expect("fio starts").status.success()
}

#[test]
fn the_real_fio_reads_them_too() {
    let Some(fio) = sheave_testkit::require("fio") else { return };
    for file in files() {
        assert!(fio_takes(&fio, &file), "{}", file.display());
    }
    let dir = tempfile::tempdir().expect("a directory");
    let wrong = dir.path().join("wrong.fio");
    std::fs::write(&wrong, "[a]\niodepht=4\n").expect("written");
    assert!(!fio_takes(&fio, &wrong), "it does not look");
}
