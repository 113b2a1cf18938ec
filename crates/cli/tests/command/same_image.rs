//! Two exports to the same file at once.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use ::sheave_base::rng::Rng;
use rustix::process::{Pid, Signal, kill_process};
use sheave_testkit::process;

use crate::sheave::{Dir, Said, no_io_uring};

/// Export to `out` that is stopped in the middle. The process is killed when the value is dropped.
struct Stopped(Option<Child>);

impl Stopped {
    fn start(dir: &Dir) -> Stopped {
        // Each read takes 300 ms, so the export is still running when it is stopped.
        let spec = format!("fault:delay=1,delay_time=300ms,ops=read,over=file:{}#v", dir.path("p.img").display());
        let mut command = dir.command(&format!("volume export {spec} out --progress none"));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        let export = Stopped(Some(child));
        let until = Instant::now() + Duration::from_secs(60);
        while fs::metadata(dir.path("out")).map_or(0, |meta| meta.len()) == 0 {
            assert!(Instant::now() < until, "nothing is written");
            std::thread::sleep(Duration::from_millis(1));
        }
        process::stop(export.0.as_ref().expect("it has not ended").id());
        export
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(self.0.as_ref().expect("it has not ended")), signal).expect("it is there");
    }

    fn goes_on(mut self) -> Said {
        self.signal(Signal::CONT);
        Said::of(self.0.take().expect("it has not ended").wait_with_output().expect("it ends"))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            // A failed test must leave no process.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_file_that_an_export_makes_is_in_use_until_it_ends_and_only_that_file_is_removed() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let mut image = vec![0; 64 << 20];
    Rng::new(5).fill(&mut image);
    fs::write(dir.path("in"), &image).expect("written");
    dir.ok("pool create p.img --size 128M");
    dir.ok("volume import in p.img#v --progress none");
    dir.ok("pool create q.img --size 64M");
    dir.ok("volume create q.img#w --size 8M");

    let first = Stopped::start(&dir);
    for line in ["volume export q.img#w out --yes", "volume export-diff q.img#w out --yes"] {
        let second = dir.run(line);
        assert!(second.code == 1 && second.err.contains("out is in use"), "{line}: {}\n{}", second.code, second.err);
    }
    let first = first.goes_on();
    assert_eq!(first.code, 0, "{}", first.err);
    assert!(fs::read(dir.path("out")).expect("read") == image);

    // On Ctrl-C the export removes its own file, but not another file that has the name by then.
    fs::remove_file(dir.path("out")).expect("removed");
    for replaced in [false, true] {
        let first = Stopped::start(&dir);
        if replaced {
            fs::remove_file(dir.path("out")).expect("removed");
            dir.ok("volume export q.img#w out --progress none");
        }
        first.signal(Signal::INT);
        let first = first.goes_on();
        assert_eq!(first.code, 130, "{}", first.err);
        assert_eq!(fs::metadata(dir.path("out")).ok().map(|meta| meta.len()), replaced.then_some(8 << 20));
    }
}
