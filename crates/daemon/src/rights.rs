//! Permission to open the devices that a call names.
//!
//! The daemon often runs as root, and a user may be allowed to change its exports without being root. So:
//!
//! * P1. The configuration, root and the daemon's own user may name anything: they have the daemon's rights, or more.
//! * P2. A device that any other user names is opened with that user's rights, by the caller, who passes the
//!   descriptors. A spec with which the daemon would open a file, socket or server itself is refused, at any depth of
//!   the spec, and so is a kind of device that does not declare what it opens.
//!   The same holds for the path of a vhost-user socket: such a caller binds the socket and passes it.
//! * P3. The spec of a file that such a user passes must have the path that the kernel knows for the file, because the
//!   daemon later opens and shows that path.

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use sheave_drivers::host::Passed;
use sheave_drivers::reach::Reach;

use crate::devices;
use crate::failure::{self, Failure};

/// The rights with which a device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// The daemon's rights (P1).
    Own,
    /// The rights of a user that is neither root nor the daemon's own (P2).
    Of { uid: u32 },
}

impl Rights {
    /// Returns the rights for calls of this user.
    pub fn of_user(uid: u32) -> Rights {
        let own = rustix::process::geteuid().as_raw();
        if uid == 0 || uid == own { Rights::Own } else { Rights::Of { uid } }
    }

    /// Fails if `spec` needs more than these rights. `passed` is the file that the caller sent with it.
    pub fn expect(self, spec: &str, passed: Option<&Passed>) -> Result<(), Failure> {
        let Rights::Of { uid } = self else { return Ok(()) };
        let reaches = devices::reaches(spec).map_err(failure::device)?;
        match (passed, reaches.as_slice()) {
            (None, []) => Ok(()),
            (None, [first, ..]) => Err(Failure::run(format!(
                "{first}: the daemon opens nothing that user {uid} names, for it has rights that the user may not have"
            ))
            .fix(
                "let the command open the file, as `sheave export add file:PATH` and `sheave pool grow --add PATH` do; \
                 or have the device put into the daemon's configuration",
            )),
            (Some(passed), [Reach::Data(path)]) if spec.starts_with("file:") => expect_name(path, passed),
            (Some(_), _) => Err(Failure::usage(format!("{spec}: a file came with it, which this is not a spec of"))
                .fix("pass a file with a spec such as file:/srv/a.img, which has no device below")),
        }
    }
}

impl Rights {
    /// Fails if a vhost-user socket at `path` needs more than these rights: only a caller with the daemon's rights may
    /// have it bound by the daemon.
    pub fn expect_socket(self, path: &Path, is_passed: bool) -> Result<(), Failure> {
        match self {
            Rights::Of { uid } if !is_passed => Err(Failure::run(format!(
                "{}: the daemon makes no socket that user {uid} names, for it has rights that the user may not have",
                path.display()
            ))
            .fix("let the command make the socket, as `sheave export add --vhost-user PATH` does")),
            _ => Ok(()),
        }
    }
}

/// Fails if `path` is not the path that the kernel has for the file (P3).
fn expect_name(path: &PathBuf, passed: &Passed) -> Result<(), Failure> {
    let link = format!("/proc/self/fd/{}", passed.file.as_raw_fd());
    let real = std::fs::read_link(link).map_err(|error| Failure::run(format!("looking at the file: {error}")))?;
    if real == *path {
        return Ok(());
    }
    let what = format!("the file that came is called {}, and the spec calls it {}", real.display(), path.display());
    Err(Failure::usage(what).fix("name the file by its whole path, without links"))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const OTHER: Rights = Rights::Of { uid: 4242 };

    #[test]
    fn root_and_the_daemons_own_user_have_its_rights_and_nobody_else() {
        let own = rustix::process::geteuid().as_raw();
        assert_eq!((Rights::of_user(0), Rights::of_user(own)), (Rights::Own, Rights::Own));
        assert_eq!(Rights::of_user(own + 4242), Rights::Of { uid: own + 4242 });
    }

    /// Every kind of device, at several depths.
    #[test]
    fn nothing_is_opened_by_name_for_another_user() {
        let cases = [
            ("file:/etc/shadow,readonly=on", "the file /etc/shadow"),
            ("file:/etc/made,size=1M", "the file /etc/made"),
            ("fault:error=0,over=file:/k", "the file /k"),
            ("partition:size=512,over=file:/k", "the file /k"),
            ("linear:over=ram:size=1M+file:/k", "the file /k"),
            ("linear:over=fault:over=partition:over=file:\"/k,l\"", "the file /k,l"),
            ("fault:over=nbd:unix:/run/a.sock", "the socket /run/a.sock"),
            ("nbd:host:1/x", "the server host, over the network"),
            ("linear:over=ram:size=1M+rbd:p/i,id=u", "the cluster of p/i, over the network"),
        ];
        for (spec, what) in cases {
            let refused = OTHER.expect(spec, None).expect_err(spec);
            assert!(refused.cause().starts_with(what) && refused.cause().contains("user 4242"), "{}", refused.cause());
            assert!(refused.how_to_mend().is_some());
            Rights::Own.expect(spec, None).expect(spec);
        }
        for spec in ["ram:size=1M", "null:", "fault:seed=1,over=linear:over=ram:size=1M+null:"] {
            OTHER.expect(spec, None).expect(spec);
        }
        for spec in ["vol:/k#v", "/etc/shadow", "odd:x", "fault:over=odd:x", "file:\"/k"] {
            assert!(OTHER.expect(spec, None).is_err(), "{spec}");
        }
    }

    /// A kind that declares nothing would be refused even where its devices are harmless.
    #[test]
    fn every_kind_declares_what_it_opens() {
        for kind in ["null", "ram", "file", "fault", "partition", "linear", "nbd", "rbd"] {
            assert!(crate::place::is_kind(kind));
            devices::reaches(&format!("{kind}:")).expect(kind);
        }
        let all = devices::reaches("nbd:h:1/x,ca=/ca,cert=/cert,key=/key").expect("a spec");
        let reads = ["/ca", "/cert", "/key"].map(|path| Reach::Reads(path.into()));
        assert_eq!(all, [[Reach::Network("the server h".into())].as_slice(), &reads].concat());
        let all = devices::reaches("rbd:p/i,keyring=/k,conf=/c").expect("a spec");
        assert_eq!(all[1..], ["/c", "/k"].map(|path| Reach::Reads(path.into())));
    }

    #[test]
    fn a_file_that_is_passed_is_called_what_it_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = std::fs::canonicalize(dir.path()).expect("there").join("a.img");
        std::fs::write(&path, [0; 4096]).expect("written");
        let link = path.with_file_name("link");
        std::os::unix::fs::symlink(&path, &link).expect("made");
        let open = || File::open(&path).expect("there");
        let passed = Passed { file: open(), lock: open() };
        let expect = |spec: &str| OTHER.expect(spec, Some(&passed));
        expect(&format!("file:{},readonly=on", path.display())).expect("its name");
        for (spec, why) in [
            (format!("file:{}", link.display()), "is called"),
            ("file:/etc/shadow".into(), "is called"),
            (format!("fault:over=file:{}", path.display()), "not a spec of"),
            ("ram:size=1M".into(), "not a spec of"),
            (format!("linear:over=file:{}+file:/etc/shadow", path.display()), "not a spec of"),
        ] {
            let refused = expect(&spec).expect_err(&spec);
            assert!(refused.cause().contains(why), "{spec}: {}", refused.cause());
        }
        Rights::Own.expect("file:/etc/shadow", Some(&passed)).expect("any name");
    }
}
