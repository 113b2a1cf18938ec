//! What a job file says and means, what is refused, and that fio reads the files of the repository.

use super::*;

const JOBS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../jobs");

fn job(text: &str) -> Result<Job, LoadError> {
    Job::parse("my.fio", text)
}

/// A job with these lines, which is good without them.
fn with(lines: &str) -> Result<Job, LoadError> {
    job(&format!("[global]\nnumber_ios=5\n[a]\n{lines}\n"))
}

#[test]
fn every_option_does_what_it_says() {
    let text = "; a comment\n# another\n[global]\nioengine=io_uring\ntime_based\nruntime=500ms\n\n[peak]\r\n\
                filename=/dev/x\nsize=1G\nbuffered=0\nrw=randrw\nrwmixread=70\nbs = 512\nnorandommap\nrandseed=9\n\
                iodepth=128\niodepth_batch_submit=32\niodepth_batch_complete_min=32\nhipri=1\nfixedbufs=1\n\
                registerfiles=1\nnumjobs=2\nthread\ngroup_reporting=1\ncpus_allowed=0,3\nsync=dsync\nnumber_ios=7\n\
                rate_iops=1000";
    let expected = Job {
        name: "peak".into(),
        filename: Some("/dev/x".into()),
        size: Some(1 << 30),
        direct: true,
        rw: Rw::Randrw,
        mix: 70,
        bs: 512,
        depth: 128,
        batch: 32,
        threads: 2,
        poll: true,
        fixed_buffers: true,
        dsync: true,
        runtime: Some(Duration::from_millis(500)),
        ios: Some(7),
        rate: Some(1000),
        seed: Some(9),
        cpus: Some(CpuList(vec![0, 3])),
    };
    assert_eq!(job(text), Ok(expected));
}

#[test]
fn what_a_file_leaves_out_is_fios_default() {
    let job = job("[a]\nnumber_ios=5\nfilename=/none/there\nsize=4M").expect("a job");
    assert_eq!((job.rw, job.bs, job.depth, job.batch, job.threads), (Rw::Read, 4096, 1, 1, 1));
    assert!(!job.direct && !job.poll && !job.fixed_buffers && !job.dsync);
    assert_eq!(job.spec().as_deref(), Some("file:/none/there,size=4194304,direct=off"));
    let here = with("filename=/dev/null\nsize=4M\ndirect=1").expect("a job");
    assert_eq!(here.spec().as_deref(), Some("file:/dev/null,direct=on"), "it has a size of its own");
}

#[test]
fn an_error_says_where_and_what_is_known() {
    let error = with("bs=4k\niodepht=4").unwrap_err();
    assert_eq!(error.cause, "my.fio, line 5, [a]: there is no option iodepht");
    assert!(error.usage && error.fix.expect("a fix").contains("iodepth, "), "the known ones");
    let error = with("bs=1000").unwrap_err();
    assert_eq!(error.cause, "my.fio, line 4, [a]: bs=1000 cannot be");
    assert!(job("x=1\n[a]").unwrap_err().cause.starts_with("my.fio, line 1: x stands before"));
}

#[test]
fn what_would_be_understood_in_another_way_is_refused() {
    let lines = [
        ("ioengine=libaio", "cannot be"),
        ("filename=/a:/b", "cannot be"),
        ("filename=/a,b", "cannot be"),
        ("size=0", "cannot be"),
        ("rw=trim", "cannot be"),
        ("rw=randread", "once"),
        ("rw=randread\nnorandommap=0", "once"),
        ("rwmixread=101", "cannot be"),
        ("rwmixread=30", "randrw"),
        ("bs=32M", "cannot be"),
        ("direct=yes", "cannot be"),
        ("iodepth=0", "cannot be"),
        ("iodepth=5000", "cannot be"),
        ("iodepth=4\niodepth_batch=4", "differ"),
        ("iodepth_batch=4\niodepth_batch_complete=4", "more than iodepth"),
        ("registerfiles=0", "cannot be"),
        ("thread=0", "cannot be"),
        ("group_reporting=0", "cannot be"),
        ("numjobs=2", "part each"),
        ("cpus_allowed=0-1", "one CPU"),
        ("cpus_allowed=x", "cannot be"),
        ("sync=1", "cannot be"),
        ("runtime=5", "ends by time"),
        ("time_based", "ends by time"),
        ("number_ios=0", "cannot be"),
        ("rate_iops=0", "cannot be"),
        ("[b]", "[b] comes after the job [a]"),
        ("[b", "no section"),
        ("[]", "comes after"),
        ("stonewall", "no option stonewall"),
    ];
    for (line, why) in lines {
        let error = with(line).expect_err(line);
        assert!(error.cause.contains(why) && error.fix.is_some() && error.usage, "{line}: {error}");
    }
    assert!(job("").unwrap_err().cause.contains("no job"));
    assert!(job("[global]\nbs=4k").unwrap_err().cause.contains("no job"));
    assert!(job("[]\n").unwrap_err().cause.contains("without a name"));
    assert!(job("[a]\nbs=4k").unwrap_err().cause.contains("nothing ends it"));
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

/// The table of the page names each option, and no other.
#[test]
fn the_page_has_every_option() {
    let page = include_str!("../../../../docs/jobs.md");
    let (_, table) = page.split_once("|---|---|---|\n").expect("a table of three columns");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let mut told: Vec<&str> =
        rows.flat_map(|row| row.split('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2)).collect();
    let mut known: Vec<&str> = SETTINGS.iter().flat_map(|setting| setting.names).copied().collect();
    told.sort_unstable();
    known.sort_unstable();
    assert_eq!(told, known);
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

/// Whether the real fio takes a file.
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
